"""Adapters that make other engines publish. The inspector never imports them."""
