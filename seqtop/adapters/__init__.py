"""Adapters: what makes other engines publish. Nothing of the inspector imports them."""
