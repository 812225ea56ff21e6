"""A tokenizer whose tokens are any byte strings, as those of byte-level BPE are."""


class ByteStrings:
    """Token `i` is ``vocab[i]``; ids beyond have no text, as in models with padded vocabularies.

    Token 0 may be a special one.
    """

    is_byte_level = True

    def __init__(self, vocab: list[bytes], *, has_special: bool = False) -> None:
        self.vocab = vocab
        self.has_special = has_special

    def decode(self, ids: list[int], *, skip_special_tokens: bool = True) -> str:
        skipped = [0] if self.has_special and skip_special_tokens else []
        known = (
            self.vocab[token_id]
            for token_id in ids
            if token_id < len(self.vocab) and token_id not in skipped
        )
        return b"".join(known).decode("utf-8", errors="replace")

    def id_to_token(self, token_id: int) -> str:
        if token_id >= len(self.vocab):
            raise KeyError(token_id)
        return repr(self.vocab[token_id])
