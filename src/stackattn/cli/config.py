"""List the keys of configurations, and show the configurations that are shipped with the package.

`stackattn config cfl` lists every key of `stackattn cfl train` with its type, default and meaning.
"""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..config import ConfigKey

COMMANDS = {
    "cfl": "models on context-free languages",
    "lm": "language models of text",
    "mt": "translation models",
}
PAGE = """# Configuration reference

Made by `stackattn config --markdown`; edit the documentation of the options in `stackattn.training`, not this page.

A configuration is a YAML file with sections of keys. `stackattn config list` lists the shipped ones, and
`stackattn config show figure-2/dyck/tf-nd > my.yaml` copies one. Every key can be changed on the command line:
`--set training.learning_rate=0.01`. [Training](training.md) explains how they work together.
"""
PRESET = """## Preset

The key `preset`, outside of the sections, sets all options in which the published code differs from the paper:
`published` follows the code, `paper` the paper. Without a preset, all defaults follow the paper. Options that the
configuration sets itself keep their values. `--preset paper` and `--preset published` replace the preset of a file.

| command | key | `preset: published` |
| --- | --- | --- |
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--markdown", action="store_true", help="print the reference page of all commands as Markdown and exit"
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION")
    for name, what in COMMANDS.items():
        actions.add_parser(
            name,
            help=f"list the configuration keys of `stackattn {name}`: {what}",
            description=f"List every configuration key of `stackattn {name} train` and `sweep`.",
        )
    actions.add_parser(
        "list", help="list the shipped configurations", description="List the names of the shipped configurations."
    )
    show = actions.add_parser(
        "show", help="print a shipped configuration", description="Print the YAML text of a shipped configuration."
    )
    show.add_argument("name", metavar="NAME", help="name of a configuration, such as figure-2/dyck/tf-nd")


def run(args: argparse.Namespace) -> int:
    if args.markdown:
        print(reference_page(), end="")
    elif args.action is None:
        raise ValueError(f"expected an action ({', '.join(COMMANDS)}, list, show) or --markdown, got neither")
    elif args.action == "list":
        from ..paper.configurations import configuration_names

        print("\n".join(configuration_names()))
    elif args.action == "show":
        from ..lines import read_text
        from ..paper.configurations import find_configuration

        print(read_text(find_configuration(args.name)), end="")
    else:
        _print_keys(args.action)
    return 0


def _print_keys(command: str) -> None:
    for key in _keys(command):
        default = _default(key)
        print(f"{_name(key)}: {_type(key)}, {default if default == 'required' else f'default {default}'}")
        print(textwrap.fill(key.doc, 100, initial_indent="    ", subsequent_indent="    "))


def _keys(command: str) -> list[ConfigKey]:
    from ..config import describe
    from ..training.experiment import config_class

    return describe(config_class(command))


def _name(key: ConfigKey) -> str:
    return f"{key.key} ({key.kind})" if key.kind else key.key


def _type(key: ConfigKey) -> str:
    """The type of a key in the words of YAML."""
    return (
        key.type.replace("tuple[", "[")
        .replace("dict[str, Any]", "mapping")
        .replace("None", "null")
        .replace(" | ", " or ")
    )


def _default(key: ConfigKey) -> str:
    from ..config import REQUIRED

    return "required" if key.default is REQUIRED else _yaml(key.default)


def _yaml(value: Any) -> str:
    import yaml

    value = list(value) if isinstance(value, tuple) else value
    return yaml.safe_dump(value, default_flow_style=True, width=1000).removesuffix("\n...\n").strip()


def reference_page() -> str:
    """The text of docs/configuration.md."""
    sections = [PAGE, PRESET + "".join(_preset_rows())]
    for command, what in COMMANDS.items():
        rows = (f"| `{_name(key)}` | {_type(key)} | `{_default(key)}` | {key.doc} |\n" for key in _keys(command))
        header = "| key | type | default | meaning |\n| --- | --- | --- | --- |\n"
        sections.append(f"## `stackattn {command}`: {what}\n\n{header}{''.join(rows)}")
    return "\n".join(sections)


def _preset_rows() -> Iterator[str]:
    from ..paper.presets import published
    from ..training.experiment import config_class

    rows = {}
    for command in COMMANDS:
        language = {"language": {"name": "dyck"}} if command == "cfl" else {}
        for kind in ("transformer", "lstm") if command == "cfl" else ("transformer",):
            options = published(config_class(command), {**language, "model": {"kind": kind}})
            for section, values in options.items():
                for name, value in values.items():
                    note = f" ({kind})" if command == "cfl" and section == "model" else ""
                    rows[command, f"{section}.{name}{note}"] = value
    for (command, key), value in sorted(rows.items(), key=lambda row: row[0]):
        yield f"| {command} | `{key}` | `{_yaml(value)}` |\n"
