"""Asking PostgreSQL's catalogue, where an error of its own says too little."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Text, column, func, literal_column, select, table

from ._parts import Parts, bind


def whole_index(parts: Parts) -> Any:  # noqa: ARG001 - every builder takes the parts
    """Name the index of a partitioned table, by the name of its part in one partition."""
    classes = table("pg_class", column("oid"), column("relname", Text), schema="pg_catalog")
    name = func.concat_ws(
        literal_column("'.'"),
        func.quote_ident(bind("schema", Text)),
        func.quote_ident(bind("index", Text)),
    )
    whole = func.pg_partition_root(func.to_regclass(name))
    return select(classes.c.relname).where(classes.c.oid == whole)
