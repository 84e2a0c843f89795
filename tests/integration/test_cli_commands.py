"""Every command, through the real program."""

import base64
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest

CLI = [sys.executable, "-m", "ispine.cli.main"]
COMMANDS = [
    ["up"],
    ["hub"],
    ["agent"],
    ["broker"],
    ["scheduler"],
    ["demo"],
    ["run"],
    ["devices"],
    ["tasks"],
    ["why"],
    ["drain"],
    ["resume"],
    ["capacity"],
    ["simulate"],
    ["doctor"],
    ["models", "list"],
    ["models", "show"],
    ["models", "add"],
    ["models", "bench"],
    ["models", "verify"],
    ["rules", "show"],
    ["rules", "check"],
    ["config", "show"],
    ["service", "install"],
    ["service", "uninstall"],
]


def run(*arguments: str, url: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    variables = {**os.environ, "COLUMNS": "200", **environment}
    if url:
        variables["ISPINE_URL"] = url
    return subprocess.run(
        [*CLI, *arguments], capture_output=True, text=True, timeout=40, env=variables, check=False
    )


@pytest.fixture(scope="module")
def fleet_url(module_fleet: Any) -> str:
    module_fleet.start_hub()
    module_fleet.start_agent("lap", "--kind", "laptop")
    url: str = module_fleet.url
    return url


@pytest.fixture
def photo(photos: Any, tmp_path: Path) -> str:
    path = tmp_path / "astronaut.jpg"
    path.write_bytes(photos["astronaut"])
    return str(path)


def test_every_command_explains_itself() -> None:
    from typer.testing import CliRunner

    from ispine.cli.main import app

    for command in COMMANDS:
        shown = CliRunner().invoke(app, [*command, "--help"])
        assert shown.exit_code == 0, command
        assert "Usage" in shown.output


@pytest.mark.parametrize(
    "wrong",
    [
        ["nosuch"],
        ["run"],
        ["drain"],
        ["hub", "--port", "many"],
        ["hub", "--port", "70000"],
        ["hub", "--engine", "nosuch"],
        ["hub", "--anonymous", "me"],
        ["tasks", "--limit", "0"],
    ],
)
def test_wrong_usage_ends_with_2(wrong: list[str]) -> None:
    assert run(*wrong).returncode == 2


def test_the_version_is_printed() -> None:
    from importlib.metadata import version

    assert run("--version").stdout.strip() == f"ispine {version('ispine')}"


def test_a_shell_gets_its_completion() -> None:
    shown = run("--show-completion", "bash", _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1")
    assert shown.returncode == 0
    completed = run(
        COMP_WORDS="ispine dev", COMP_CWORD="1", _ISPINE_COMPLETE="complete_bash"
    ).stdout
    assert "devices" in completed.split()


def test_run_prints_what_is_in_a_picture_and_saves_it(
    fleet_url: str, photo: str, tmp_path: Path
) -> None:
    ran = run("run", "detect", photo, "--save", str(tmp_path / "out"), "--json", url=fleet_url)
    assert ran.returncode == 0, ran.stderr
    told = json.loads(ran.stdout)
    assert told["found"][0]["label"] == "person"
    assert told["device"] == "lap"
    assert (tmp_path / "out" / "astronaut.jpg").stat().st_size > 10_000
    plain = run("run", "classify", photo, url=fleet_url)
    assert "lap" in plain.stdout


def test_a_capability_of_ones_own_lies_in_the_current_folder(
    fleet: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.py").write_text(
        "def count(data):\n    return b'{\"bytes\": %d}' % len(data)\n"
        "def name(data):\n    return data.upper()\n"
    )
    text = tmp_path / "some.txt"
    text.write_text("hello")
    monkeypatch.chdir(tmp_path)
    fleet.start_hub()
    fleet.start_agent("lap", "--capability", "count=mine:count", "--capability", "name=mine:name")
    told = json.loads(run("run", "count", str(text), "--json", url=fleet.url).stdout)
    assert base64.b64decode(told["data"]) == b'{"bytes": 5}'
    assert told["device"] == "lap"
    shown = run("run", "name", str(text), url=fleet.url)
    assert "5 bytes" in shown.stdout


def test_run_says_which_file_failed_and_goes_on(fleet_url: str, photo: str) -> None:
    ran = run("run", "detect", __file__, photo, url=fleet_url)
    assert ran.returncode == 1
    assert "expected a JPEG, PNG or WebP" in ran.stderr
    assert "person" in ran.stdout
    assert "Traceback" not in ran.stderr


def test_devices_tasks_and_why_tell_one_story(fleet_url: str, photo: str) -> None:
    run("run", "detect", photo, url=fleet_url)
    devices = json.loads(run("devices", "--json", url=fleet_url).stdout)
    assert [row["device"] for row in devices] == ["lap"]
    assert devices[0]["kind"] == "laptop"
    tasks = json.loads(run("tasks", "--json", url=fleet_url).stdout)
    last = tasks[-1]
    assert last["status"] == "done"
    story = json.loads(run("why", last["task"], "--json", url=fleet_url).stdout)
    assert story["device"] == "lap"
    assert story["steps"][0]["candidates"][0]["device"] == "lap"
    assert sum(story["parts_ms"].values()) == pytest.approx(story["total_ms"], rel=0.05)
    for command in (["devices"], ["tasks"], ["why", last["task"]]):
        shown = run(*command, url=fleet_url)
        assert shown.returncode == 0
        assert "lap" in shown.stdout


def test_new_tasks_are_followed(fleet_url: str, photo: str) -> None:
    follow = subprocess.Popen(
        [*CLI, "tasks", "--follow", "--json", "--limit", "1", "--url", fleet_url],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert follow.stdout is not None
    try:
        run("run", "detect", photo, url=fleet_url)
        first = json.loads(follow.stdout.readline())
        run("run", "classify", photo, url=fleet_url)
        row = json.loads(follow.stdout.readline())
        while row["capability"] != "classify":
            row = json.loads(follow.stdout.readline())
        assert row["cursor"] > first["cursor"]
    finally:
        follow.kill()
        follow.wait()
        follow.stdout.close()


def test_another_root_is_another_fleet(fleet: Any) -> None:
    fleet.start_hub("--root", "lab/one")
    fleet.start_agent("lap", "--capability", "echo", "--root", "lab/one")
    told = run("devices", "--json", "--root", "lab/one", url=fleet.url)
    assert [row["device"] for row in json.loads(told.stdout)] == ["lap"]
    told = run("devices", "--json", url=fleet.url, ISPINE_ROOT="lab/one")
    assert [row["device"] for row in json.loads(told.stdout)] == ["lap"]
    text = run("run", "echo", __file__, "--root", "lab/one", url=fleet.url)
    assert text.returncode == 0
    assert run("devices", url=fleet.url).returncode == 1
    wrong = run("devices", "--root", "a/#", url=fleet.url)
    assert wrong.returncode == 1
    assert "--root" in wrong.stderr


@pytest.mark.parametrize(
    "command", [["drain", "a/b"], ["resume", "#"], ["why", "a/b"], ["capacity", "a b"]]
)
def test_a_bad_id_is_refused(fleet_url: str, command: list[str]) -> None:
    ran = run(*command, "--json", url=fleet_url)
    assert ran.returncode == 1
    error = json.loads(ran.stdout)["error"]
    assert "letters, digits" in error["message"]


@pytest.mark.parametrize("capability", ["a/b", "#", "no such", ""])
def test_a_bad_capability_is_refused(fleet_url: str, photo: str, capability: str) -> None:
    ran = run("run", capability, photo, "--json", url=fleet_url)
    assert ran.returncode == 1
    assert "capability" in json.loads(ran.stdout)["error"]["message"]


def test_a_device_that_stays_busy_is_said_to_be(
    fleet: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ispine.sdk import Spine

    (tmp_path / "mine.py").write_text(
        "import time\ndef slow(data):\n    time.sleep(3)\n    return data\n"
    )
    monkeypatch.chdir(tmp_path)
    fleet.start_hub()
    fleet.start_agent("lap", "--capability", "slow=mine:slow", "--slots", "1")
    with Spine.connect(fleet.url) as spine:
        future = spine.submit("slow", b"x", within_ms=20_000)
        deadline = time.monotonic() + 10
        while not json.loads(run("devices", "--json", url=fleet.url).stdout)[0]["held"]:
            assert time.monotonic() < deadline
        busy = run("drain", "lap", "--wait", "0.1", url=fleet.url)
        assert busy.returncode == 1
        assert "gets nothing new" in busy.stderr
        empty = run("drain", "lap", "--wait", "15", "--json", url=fleet.url)
        assert empty.returncode == 0
        assert json.loads(empty.stdout)["held"] == 0
        future.result(10)
    resumed = json.loads(run("resume", "lap", "--json", url=fleet.url).stdout)
    assert resumed["standing"] == "ready"


def test_a_drained_device_gets_nothing_until_it_is_resumed(fleet_url: str, photo: str) -> None:
    assert json.loads(run("drain", "lap", "--json", url=fleet_url).stdout)["drained"]
    refused = run("run", "detect", photo, "--json", url=fleet_url)
    assert refused.returncode == 1
    assert json.loads(refused.stdout)["error"]["code"] == "no_capable_device"
    assert run("resume", "lap", url=fleet_url).returncode == 0
    deadline = time.monotonic() + 10
    while run("run", "detect", photo, url=fleet_url).returncode != 0:
        assert time.monotonic() < deadline
    unknown = run("drain", "nobody", url=fleet_url)
    assert unknown.returncode == 1
    assert "expected a known device (lap)" in unknown.stderr


def test_capacity_says_how_many_streams_fit(fleet_url: str) -> None:
    told = json.loads(run("capacity", "detect", "--fps", "1", "--json", url=fleet_url).stdout)
    assert told["devices"] == 1
    assert told["streams"] >= 1


def test_doctor_finds_a_healthy_fleet_and_bundles_it(fleet_url: str, tmp_path: Path) -> None:
    bundle = tmp_path / "bundle.zip"
    ran = run("doctor", "--json", "--bundle", str(bundle), url=fleet_url)
    told = json.loads(ran.stdout)
    problems = [f for f in told["findings"] if f["state"] == "problem"]
    assert ran.returncode == 0, problems
    checks = {finding["check"] for finding in told["findings"]}
    assert {"broker", "broker: last wills", "scheduler", "device lap", "packages"} <= checks
    assert told["counters"]["connections_total"] >= 1
    with zipfile.ZipFile(bundle) as archive:
        text = archive.read("doctor.json").decode()
    assert json.loads(text)["machine"]["system"]


def test_doctor_says_what_is_wrong_without_a_hub(free_port: int) -> None:
    ran = run("doctor", "--json", url=f"mqtt://127.0.0.1:{free_port}")
    told = json.loads(ran.stdout)
    assert ran.returncode == 1
    assert any("expected an MQTT broker" in finding["seen"] for finding in told["findings"])


@pytest.mark.parametrize("command", [["devices"], ["tasks"], ["why", "x"], ["drain", "x"]])
def test_no_hub_is_one_clear_line(command: list[str], free_port: int) -> None:
    started = time.monotonic()
    ran = run(*command, url=f"mqtt://127.0.0.1:{free_port}")
    assert time.monotonic() - started < 4
    assert ran.returncode == 1
    assert ran.stderr.startswith("ispine: expected an MQTT broker")
    assert len(ran.stderr.strip().splitlines()) == 1


def test_a_broker_without_a_scheduler_is_told_apart(fleet: Any) -> None:
    from ispine.cli.processes import Child

    child = Child("broker", ["broker", "--port", "0", "--json"])
    fleet.children.append(child)
    ran = run("devices", url=str(child.wait_ready()["url"]))
    assert ran.returncode == 1
    assert "expected the scheduler" in ran.stderr


def test_a_port_in_use_is_explained(fleet_url: str) -> None:
    port = fleet_url.rsplit(":", 1)[1]
    ran = run("hub", "--port", port, "--no-announce")
    assert ran.returncode == 1
    assert f"expected port {port}" in ran.stderr
    assert "--port" in ran.stderr


def test_a_second_scheduler_on_one_broker_is_refused(fleet_url: str) -> None:
    ran = run("scheduler", "--url", fleet_url)
    assert ran.returncode == 1
    assert "scheduler" in ran.stderr


def test_the_scheduler_runs_alone_on_any_broker(fleet: Any, tmp_path: Path, free_port: int) -> None:
    from ispine.cli.processes import Child
    from ispine.sdk import Spine

    mosquitto = shutil.which("mosquitto")
    if mosquitto is None:
        pytest.skip("needs mosquitto (apt-get install mosquitto)")
    quiet = subprocess.DEVNULL
    broker = subprocess.Popen([mosquitto, "-p", str(free_port)], stdout=quiet, stderr=quiet)
    try:
        fleet.url = f"mqtt://127.0.0.1:{free_port}"
        deadline = time.monotonic() + 5
        while run("devices", url=fleet.url).stderr.startswith("ispine: expected an MQTT broker"):
            assert time.monotonic() < deadline
        child = Child("scheduler", ["scheduler", "--url", fleet.url, "--json"])
        fleet.children.append(child)
        child.wait_ready()
        fleet.start_agent("a1", "--capability", "echo")
        with Spine.connect(fleet.url) as spine:
            assert spine.call("echo", b"hello", within_ms=5000).data == b"hello"
    finally:
        broker.terminate()
        broker.wait(5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--id", "a/b"], "device_id"),
        (["--capability", "nosuch"], "nosuch"),
        (["--capability", "x=no.such:thing"], "no.such:thing"),
        (["--capability", "a b=os:getcwd"], "letters, digits"),
        (["--rules", "/nowhere.toml"], "/nowhere.toml"),
        (["--min-battery", "900"], "100"),
        (["--url", "nonsense"], "mqtt://"),
    ],
)
def test_a_wrong_agent_says_what_is_wrong(
    fleet_url: str, arguments: list[str], message: str
) -> None:
    ran = run("agent", *arguments, url=fleet_url)
    assert ran.returncode == 1
    assert message in ran.stderr
    assert "Traceback" not in ran.stderr


def test_models_are_listed_shown_verified_and_added(tmp_path: Path) -> None:
    rows = json.loads(run("models", "list", "--json").stdout)
    assert {row["capability"] for row in rows} == {"detect", "gesture", "classify"}
    assert run("models", "show", "nanodet-g").returncode == 0
    assert run("models", "show", "nosuch").returncode == 1
    assert run("models", "verify", "--json").returncode == 0
    bad = tmp_path / "bad.onnx"
    bad.write_bytes(b"this is no model")
    labels = tmp_path / "labels.txt"
    labels.write_text("a\nb\n")
    ran = run("models", "add", str(bad), "--task", "detect", "--labels", str(labels))
    assert ran.returncode == 1
    assert "expected an ONNX" in ran.stderr


def test_the_settings_of_an_agent_are_its_rules(fleet: Any, tmp_path: Path) -> None:
    from ispine.cli.processes import Child

    file = tmp_path / "config.toml"
    file.write_text("[agent]\nid = 'lap'\nmin_battery = 41\ncapability = ['echo']\n")
    fleet.start_hub()
    command = ["agent", "--url", fleet.url, "--json"]
    settings = {"ISPINE_CONFIG": str(file), "ISPINE_AGENT_MAX_TEMP": "77"}
    child = Child("lap", command, settings)
    fleet.children.append(child)
    assert child.wait_ready()["id"] == "lap"
    told = json.loads(run("rules", "show", "--device", "lap", "--json", url=fleet.url).stdout)
    assert (told["rules"]["min_battery_pct"], told["rules"]["max_temp_c"]) == (41, 77)
    assert told["accepts"]
    here = json.loads(run("rules", "show", "--json", **settings).stdout)
    assert here["rules"]["min_battery_pct"] == 41
    unknown = run("rules", "show", "--device", "nobody", url=fleet.url)
    assert "expected a known device (lap)" in unknown.stderr
    file.write_text("[agent]\nmin_batery = 41\n")
    wrong = run("agent", "--json", ISPINE_CONFIG=str(file))
    assert wrong.returncode == 1
    assert "agent.min_batery" in json.loads(wrong.stdout)["error"]["message"]


def test_rules_are_checked(tmp_path: Path) -> None:
    file = tmp_path / "rules.toml"
    file.write_text("min_battery_pct = 40\nquiet_hours = ['22:00-07:00']\n")
    assert json.loads(run("rules", "check", str(file), "--json").stdout)["valid"]
    file.write_text("min_battery = 40\n")
    assert run("rules", "check", str(file)).returncode == 1


def test_settings_say_where_they_come_from(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text('url = "mqtt://me:secret@hub.local"\n')
    told = json.loads(run("config", "show", "--json", ISPINE_CONFIG=str(file)).stdout)
    assert told["settings"]["url"] == {"value": "mqtt://hub.local", "from": str(file)}
    file.write_text("url = \n")
    assert run("config", "show", ISPINE_CONFIG=str(file)).returncode == 1


def test_the_settings_file_names_the_hub(fleet_url: str, tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(f'url = "{fleet_url}"\n')
    told = json.loads(run("devices", "--json", ISPINE_CONFIG=str(file)).stdout)
    assert [row["device"] for row in told] == ["lap"]


def test_up_restarts_what_dies_and_stops_cleanly(free_port: int) -> None:
    import psutil

    from ispine.cli.processes import Child

    up = Child("up", ["up", "--port", str(free_port), "--json"])
    try:
        url = str(up.wait_ready()["url"])
        children = psutil.Process(up.pid).children()
        hub = next(child for child in children if "hub" in child.cmdline())
        hub.send_signal(signal.SIGKILL)
        deadline = time.monotonic() + 25
        while '"online": true' not in run("devices", "--json", url=url).stdout:
            assert time.monotonic() < deadline
    finally:
        up.stop()
    assert up.process.returncode == 0
    up.close()


def test_the_demo_loses_nothing_while_a_device_is_killed(tmp_path: Path) -> None:
    ran = run("demo", "--json", "--seconds", "6", "--out", str(tmp_path))
    assert ran.returncode == 0, ran.stderr
    told = json.loads(ran.stdout)
    assert (told["lost"], told["duplicated"]) == (0, 0)
    assert told["sent"] == 144
    assert told["answered"] >= 140
    assert {"laptop", "phone"} <= set(told["share"]) <= {"laptop", "tablet", "phone"}
    assert told["detections"]["person"] > 0
    assert told["longest_gap_ms"] < 2000
    assert {path.name for path in tmp_path.iterdir()} >= {"astronaut.jpg", "coffee.jpg"}


def test_a_demo_that_is_stopped_leaves_nobody_behind() -> None:
    import psutil

    demo = subprocess.Popen(
        [*CLI, "demo", "--json"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 20
    children: list[psutil.Process] = []
    while len(children) < 5:
        assert time.monotonic() < deadline
        time.sleep(0.1)
        children = psutil.Process(demo.pid).children()
    demo.send_signal(signal.SIGTERM)
    assert demo.wait(20) == 130
    assert not any(child.is_running() for child in children)


@pytest.mark.skipif(os.geteuid() != 0, reason="a small file system can be mounted by root only")
def test_the_demo_says_that_the_disk_is_full(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", str(small)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip("this machine may not mount a tmpfs")
    try:
        ran = run("demo", "--json", "--seconds", "4", "--out", str(small))
    finally:
        subprocess.run(["umount", str(small)], check=True)
    assert ran.returncode == 1
    assert "expected to save pictures" in json.loads(ran.stdout)["error"]["message"]
