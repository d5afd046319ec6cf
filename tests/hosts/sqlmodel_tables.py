# ruff: noqa: I002 - SQLModel's relationships need annotations that are evaluated at once
"""A host with nothing but SQLModel tables."""

import sqlmodel
from sqlalchemy.orm import registry
from sqlmodel import Field, Relationship

from sqla_taskqueue import BoardMixin, TaskEventMixin, TaskMixin, UuidId


class Base(sqlmodel.SQLModel, registry=registry()):
    pass


class Team(Base, table=True):
    id: int | None = Field(default=None, primary_key=True)
    tickets: list["Ticket"] = Relationship(back_populates="team")


class Ticket(UuidId, TaskMixin, BoardMixin, Base, table=True):
    __scope__ = ("team_id",)

    team_id: int = Field(foreign_key="team.id")
    copies: int = 1
    team: Team = Relationship(back_populates="tickets")
    events: list["TicketEvent"] = Relationship(
        back_populates="ticket", sa_relationship_kwargs={"order_by": "TicketEvent.id"}
    )


class TicketEvent(TaskEventMixin, Base, table=True):
    __task_model__ = Ticket

    source: str = "app"
    ticket: Ticket = Relationship(back_populates="events")
