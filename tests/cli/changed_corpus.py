"""A check shared by the tests of lm and mt: training and evaluation refuse a corpus whose files have changed."""

from stackattn.cli import main


def check_changed_files(command, config, out, files, capsys):
    """Truncate each file in turn: report.json still has the fingerprint of the run, but the text differs.

    `files` maps the splits train and test to a file and its number of lines.
    """
    run = str(out)
    assert main([command, "train", str(config), "--out", run, "--minutes", "0"]) == 0
    for split, (path, lines) in files.items():
        whole = path.read_bytes()
        path.write_bytes(b"".join(whole.splitlines(keepends=True)[: lines // 3]))
        action = ["evaluate", run] if split == "test" else ["train", str(config), "--out", run, "--resume"]
        capsys.readouterr()
        assert main([command, *action]) == 2
        error = capsys.readouterr().err
        assert f"{path}: expected line count {lines}, " in error
        assert f" found line count {lines // 3}, " in error
        path.write_bytes(whole)
        assert main([command, *action]) == 0
