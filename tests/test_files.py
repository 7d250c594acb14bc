"""Atomic files and folders: complete or absent, permissions, concurrent writers, errors that name the path."""

import errno
import multiprocessing
import os
import stat
import time

import pytest
import torch

from stackattn import files
from stackattn.files import (
    FolderBusy,
    FolderLock,
    append_line,
    bytes_writer,
    checksum,
    locked,
    whole_folder,
    write_atomically,
    write_json,
    write_tensors,
    write_text,
    write_together,
)
from stackattn.lines import read_json_object


@pytest.fixture
def umask():
    """Set the umask to 0o027; the value is the mode of new files."""
    old = os.umask(0o027)
    yield 0o640
    os.umask(old)


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_permissions_follow_the_umask(tmp_path, umask):
    write_text(tmp_path / "text", "a")
    write_json(tmp_path / "json", {})
    write_tensors(tmp_path / "tensors", {"a": torch.zeros(2)})
    append_line(tmp_path / "lines", "a")
    lock = FolderLock(tmp_path / "lock", tmp_path)
    lock.acquire()
    lock.release()
    with whole_folder(tmp_path / "folder") as partial:
        write_text(partial / "a", "b")
    assert {path.name: mode(path) for path in tmp_path.iterdir() if path.is_file()} == dict.fromkeys(
        ("text", "json", "tensors", "lines", "lock"), umask
    )
    assert (mode(tmp_path / "folder"), mode(tmp_path / "folder/a")) == (0o750, umask)


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "a.txt"
    write_text(path, "old")

    def fail(partial):
        partial.write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_atomically(path, fail)
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("a.txt", "old")]


@pytest.mark.parametrize("step", ["fsync", "replace", "open"])
def test_errors_name_the_path(step, tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    path = tmp_path / "a.txt"
    with monkeypatch.context() as patched:
        patched.setattr(os, step, full)
        with pytest.raises(OSError, match="No space left on device") as error:
            write_text(path, "text")
    assert error.value.filename == str(path)
    assert list(tmp_path.iterdir()) == []


def test_errors_for_missing_folders(tmp_path):
    with pytest.raises(FileNotFoundError) as error:
        write_text(tmp_path / "missing/a.txt", "text")
    assert error.value.filename == str(tmp_path / "missing")
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError) as error:
        write_text(tmp_path / "file/a.txt", "text")
    with pytest.raises(NotADirectoryError, match="file/folder"), whole_folder(tmp_path / "file/folder"):
        pass


def test_files_and_folders_are_flushed_before_they_are_renamed(tmp_path, monkeypatch):
    """The data are flushed before the rename, and the parent folder after it."""
    steps, fsync, replace, rename = [], os.fsync, os.replace, os.rename

    def record(handle):
        steps.append(("fsync", os.readlink(f"/proc/self/fd/{handle}")))
        fsync(handle)

    monkeypatch.setattr(os, "fsync", record)
    monkeypatch.setattr(os, "replace", lambda a, b: (steps.append(("rename", str(b))), replace(a, b)))
    monkeypatch.setattr(os, "rename", lambda a, b: (steps.append(("rename", str(b))), rename(a, b)))
    write_text(tmp_path / "a", "x")
    (first, partial), *rest = steps
    assert (first, partial.endswith(".partial")) == ("fsync", True)
    assert rest == [("rename", str(tmp_path / "a")), ("fsync", str(tmp_path))]
    steps.clear()
    with whole_folder(tmp_path / "folder") as partial:
        (partial / "b").write_text("y")
    assert steps == [
        ("fsync", str(partial / "b")),
        ("fsync", str(partial)),
        ("rename", str(tmp_path / "folder")),
        ("fsync", str(tmp_path)),
    ]


def test_temporary_names_are_unique(tmp_path):
    seen = []
    for _ in range(2):
        write_atomically(tmp_path / "a", lambda partial: (seen.append(partial), partial.write_text("x")))
    assert len(set(seen)) == 2


def test_whole_folder(tmp_path):
    folder = tmp_path / "deep/er/folder"
    with whole_folder(folder) as partial:
        write_text(partial / "a", "1")
        assert not folder.exists()
    assert [path.name for path in folder.parent.iterdir()] == ["folder"]
    assert (folder / "a").read_text() == "1"
    with pytest.raises(FileExistsError, match="folder already exists; remove it or choose another folder"):
        with whole_folder(folder):
            pass
    with pytest.raises(RuntimeError), whole_folder(tmp_path / "other") as partial:  # noqa: PT012
        write_text(partial / "a", "1")
        raise RuntimeError
    assert [path.name for path in tmp_path.iterdir()] == ["deep"]


def test_leftovers_of_killed_processes_are_removed(tmp_path):
    (tmp_path / ".a[1].123-abcd0123.partial").mkdir()
    others = [".a[1].b.123-abcd0123.partial", ".b.123-abcd0123.partial"]  # other processes may be writing these
    for name in others:
        (tmp_path / name).mkdir()
    (tmp_path / ".a[1].lock").touch()
    with whole_folder(tmp_path / "a[1]"):
        pass
    assert sorted(path.name for path in tmp_path.iterdir()) == [*others, "a[1]"]


def test_a_folder_that_appears_in_the_meantime_is_not_overwritten(tmp_path):
    with pytest.raises(FileExistsError, match="another process has created it in the meantime"):  # noqa: PT012
        with whole_folder(tmp_path / "a") as partial:
            write_text(partial / "x", "ours")
            (tmp_path / "a").mkdir()
            write_text(tmp_path / "a/x", "theirs")
    assert (tmp_path / "a/x").read_text() == "theirs"


def test_a_second_lock_is_refused_until_the_first_is_released(tmp_path):
    first, second = (FolderLock(tmp_path / "lock", tmp_path) for _ in range(2))
    first.acquire()
    with pytest.raises(FolderBusy, match="another process is writing to this folder; wait until it ends"):
        second.acquire()
    assert (first.held, first.valid, second.held) == (True, True, False)
    first.release()
    second.acquire()
    (tmp_path / "lock").unlink()
    assert (second.held, second.valid) == (True, False)
    second.release()


def test_without_locks_there_is_a_warning(tmp_path, monkeypatch, caplog):
    def none(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(files.fcntl, "flock", none)
    monkeypatch.setattr(files, "_without_locks", set())
    for name in ("first", "second"):  # one warning for each file system
        FolderLock(tmp_path / name, tmp_path).acquire()
    assert len(caplog.messages) == 1
    assert "the file system has no locks (No locks available); make sure that no other process" in caplog.text


def _write(folder, name, barrier, outcomes):
    barrier.wait()
    try:
        with whole_folder(folder) as partial:
            for i in range(10):
                write_text(partial / f"{i}.txt", name)
                time.sleep(0.001)
        outcomes.put((name, "created"))
    except OSError as error:
        outcomes.put((name, str(error)))


def test_two_processes_never_mix_their_files_in_a_folder(tmp_path):
    """One process creates the folder; the other gets an error that names the folder."""
    context = multiprocessing.get_context("fork")
    for i in range(15):
        folder, outcomes, barrier = tmp_path / f"corpus{i}", context.Queue(), context.Barrier(2)
        workers = [context.Process(target=_write, args=(folder, name, barrier, outcomes)) for name in "ab"]
        for worker in workers:
            worker.start()
        found = dict(outcomes.get(timeout=30) for _ in workers)
        for worker in workers:
            worker.join()
        (winner,) = [name for name, outcome in found.items() if outcome == "created"]
        (loser,) = set(found) - {winner}
        assert found[loser].startswith(f"{folder}: a")  # already exists, or another process is writing it
        assert {path.name: path.read_text() for path in folder.iterdir()} == {f"{k}.txt": winner for k in range(10)}
    assert all(path.name.startswith("corpus") for path in tmp_path.iterdir())


def test_checksum(tmp_path):
    (tmp_path / "a").write_bytes(b"abc")
    assert checksum(tmp_path / "a") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


def test_changed_json_is_refused(tmp_path):
    path = tmp_path / "values.json"
    values = {"loss": 0.1, "nan": float("nan"), "name": "é", "list": [1, None]}
    write_json(path, values)
    assert str(read_json_object(path)) == str(values)
    path.write_text(path.read_text().replace("\n ", "\n\t"))  # the layout does not matter
    assert str(read_json_object(path)) == str(values)
    whole = path.read_text()
    path.write_text(whole.replace("crc32", "crc92"))
    with pytest.raises(ValueError, match=r"values\.json: damaged"):
        read_json_object(path)
    path.write_text(whole.replace("0.1", "0.2"))
    with pytest.raises(ValueError, match=r"values\.json: damaged: the content does not match its key 'crc32'; restore"):
        read_json_object(path)
    for text, content in (('{"written": "by hand"}', {"written": "by hand"}), ("{}", {})):
        path.write_text(text)
        assert read_json_object(path) == content


def test_two_processes_do_not_mix_files_that_belong_together(tmp_path):
    with (
        locked(tmp_path, tmp_path / ".index.lock", temporary=True),
        pytest.raises(FolderBusy, match="another process is writing to this folder"),
    ):
        write_together({tmp_path / "data": bytes_writer(b"a"), tmp_path / "index": bytes_writer(b"b")})
    assert list(tmp_path.iterdir()) == []
