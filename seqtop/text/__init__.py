"""Text for people: numbers as text, text that is safe to draw, ASCII forms, tables, tokenizers."""
