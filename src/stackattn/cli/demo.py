"""Show the operators at work."""

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", default="out/demo", help="folder for what the demo writes (default: %(default)s)")


def run(args: argparse.Namespace) -> int:
    print(f"writing to {args.out}")
    return 0
