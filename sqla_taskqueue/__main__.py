"""The command ``sqla-taskqueue``, also ``python -m sqla_taskqueue``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import typer

_COMMAND_LINE = {"typer", "rich", "click", "shellingham"}
"""What the extras bring; the library itself needs none of it."""


def main() -> None:
    """Run the command line.

    Worker processes import this module too, so it costs nothing until it is called.
    """
    try:
        app = _app()
    except ModuleNotFoundError as missing:
        name = (missing.name or "").partition(".")[0]
        if name not in _COMMAND_LINE:
            raise
        extra = "demo" if sys.argv[1:2] == ["demo"] else "cli"
        print(
            f"This command needs {name}, which is not installed: "
            f"pip install 'sqla-taskqueue[{extra}]'",
            file=sys.stderr,
        )
        raise SystemExit(2) from None
    app(prog_name="sqla-taskqueue")


def _app() -> typer.Typer:
    import typer  # noqa: PLC0415 - belongs to an extra

    from .cli.command import worker  # noqa: PLC0415 - as above
    from .demo.command import demo  # noqa: PLC0415 - as above

    app = typer.Typer(
        help="A task queue in your own SQLAlchemy models, on PostgreSQL.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )

    @app.callback(invoke_without_command=True)
    def options(  # pyright: ignore[reportUnusedFunction]
        *,
        version: bool = typer.Option(False, "--version", help="Print the version."),  # noqa: FBT003
    ) -> None:
        if version:
            from . import __version__  # noqa: PLC0415 - heavy, and seldom asked for

            print(f"sqla_taskqueue {__version__}")
            raise typer.Exit

    app.command()(worker)
    app.command()(demo)
    return app


if __name__ == "__main__":
    main()
