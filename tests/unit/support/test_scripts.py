from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from tests.support.scripts import REPO_ROOT, ScriptResult, run_script, start_script

# Leaves a child that keeps both outputs open.
ORPHAN = """
    import subprocess, sys
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    print(child.pid)
"""


def test_code_gets_its_arguments_environment_and_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REMOVED", "1")
    source = """
        import json, os, sys
        print("noise")
        environment = [os.environ.get("ADDED"), os.environ.get("REMOVED")]
        print(json.dumps([sys.argv[1:], environment, os.getcwd()]))
        print("to stderr", file=sys.stderr)
    """
    result = run_script(source, "a b", 3, env={"ADDED": "x", "REMOVED": None}, cwd=tmp_path)
    assert result.json() == [["a b", "3"], ["x", None], str(tmp_path)]
    assert (result.returncode, result.stderr) == (0, "to stderr\n")
    assert 0 < result.seconds < 30


def test_a_file_is_run_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text("print(__file__)")
    assert run_script(path).stdout == f"{path}\n"


def test_scripts_import_the_tests_and_the_library(tmp_path: Path) -> None:
    source = """
        import importlib.util
        import tests.support.scripts
        print(tests.support.scripts.__file__)
        print(importlib.util.find_spec("lance_stream").submodule_search_locations[0])
    """
    lines = run_script(source, cwd=tmp_path).check().stdout.splitlines()
    assert lines == [str(REPO_ROOT / "tests/support/scripts.py"), str(REPO_ROOT / "lance_stream")]


def test_a_failure_is_a_result_and_check_shows_it() -> None:
    result = run_script("raise SystemError('the reason')")
    assert result.returncode == 1
    with pytest.raises(AssertionError, match=r"status 1[\s\S]*SystemError: the reason"):
        result.check()
    with pytest.raises(AssertionError, match="the reason"):
        result.json()


def test_a_signal_is_a_negative_status() -> None:
    source = "import os; os.kill(os.getpid(), 11)"
    assert run_script(source).returncode == -signal.SIGSEGV


def test_a_last_line_that_is_not_json_is_shown() -> None:
    with pytest.raises(AssertionError, match=r"not JSON[\s\S]*what is this"):
        ScriptResult(0, "what is this\n", "", 1.0).json()


def test_a_hung_script_is_killed_with_its_children_and_both_outputs_shown() -> None:
    source = (
        ORPHAN
        + """
    import time
    print("said before", flush=True)
    print("and on stderr", file=sys.stderr, flush=True)
    time.sleep(600)
    """
    )
    script = start_script(source)
    script.wait_for_line("said before", 20)
    with pytest.raises(AssertionError, match=r"0\.2 s[\s\S]*said before[\s\S]*and on stderr"):
        script.wait(0.2)
    deadline_s = time.monotonic() + 5
    while script.group_pids():
        assert time.monotonic() < deadline_s, script.group_pids()
        time.sleep(0.01)
    script.close()


def test_run_script_is_bounded() -> None:
    started_s = time.monotonic()
    with pytest.raises(AssertionError, match=r"killed after 0\.5 s"):
        run_script("import time; time.sleep(600)", timeout_s=0.5)
    assert time.monotonic() - started_s < 10


def test_an_orphan_that_holds_stdout_does_not_block_and_close_ends_it() -> None:
    with start_script(ORPHAN) as script:
        result = script.wait(20)
        assert script.group_pids() == [int(result.stdout)]
    deadline_s = time.monotonic() + 5
    while script.group_pids():
        assert time.monotonic() < deadline_s, script.group_pids()
        time.sleep(0.01)
    assert (script.stdout(), script.stderr()) == (result.stdout, "")


def test_lines_can_be_waited_for_while_the_script_runs() -> None:
    source = """
        import time
        print("step 1")
        print("step 2")
        time.sleep(600)
    """
    with start_script(source) as script:
        assert script.wait_for_line(r"^step (2)$", 20)[1] == "2"
        assert script.wait_for_line(r"^step (\d)$", 20)[1] == "1"
        assert script.poll() is None
        with pytest.raises(AssertionError, match=r"no line like 'step 3' in 0\.1 s[\s\S]*step 2"):
            script.wait_for_line("step 3", 0.1)
        script.kill_group(signal.SIGTERM)
        assert script.wait(10).returncode == -signal.SIGTERM


def test_a_script_that_ends_without_the_line_is_told_at_once() -> None:
    source = "print('other'); raise SystemExit(4)"
    with (
        start_script(source) as script,
        pytest.raises(AssertionError, match=r"status 4 without a line like 'never'[\s\S]*other"),
    ):
        script.wait_for_line("never", 60)


def test_multiprocessing_can_spawn_from_a_script() -> None:
    source = """
        import multiprocessing

        def square(x):
            return x * x

        if __name__ == "__main__":
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                print(pool.map(square, [3]))
    """
    assert run_script(source).check().stdout == "[9]\n"
