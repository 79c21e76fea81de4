"""Features of the parser that are switched off: each alone would open a door that no later check closes."""

import http.server
import sys
import threading
from pathlib import Path

import fsspec
import pytest
import yaml

from tests.bad_input.case import BASE, run_case
from tests.bad_input.driver import run
from tests.bad_input.hostile import TRACE, backbone, logger, spec

DATA = yaml.safe_dump(BASE["data"])
LOUD = f"import chaosgate\nclass Loud(chaosgate.GaussianChaos):\n    def __init__(self): open({TRACE!r}, 'w')\n"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_no_address_in_a_configuration_is_fetched():
    asked = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(DATA.encode())

        do_HEAD = do_GET

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}/data.yaml"
        for words in (run_case("data", {"data": address}).words, (*run_case("data", {}).words, "-c", address)):
            status, printed = run((*words, "--print_config"))
            assert status != 0 and "data" in printed
        server.shutdown()
    assert asked == []


def test_no_file_system_but_the_machine_s_own_is_read():
    fsspec.filesystem("memory").pipe("/data.yaml", DATA.encode())
    status, printed = run((*run_case("data", {"data": "memory://data.yaml"}).words, "--print_config"))
    assert status != 0 and "data" in printed


def test_a_module_that_may_not_be_named_is_not_even_imported(tmp_path_factory, monkeypatch):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "loud_module.py").write_text(f"open({TRACE!r}, 'w')\n{LOUD}")
    monkeypatch.syspath_prepend(str(elsewhere))
    for config in ({"noise": {"gate": spec("loud_module.Loud")}}, backbone(spec("loud_module.Loud"))):
        status, printed = run(run_case("gate", config).words)
        assert status != 0 and "loud_module" in printed
        assert not Path(TRACE).exists() and "loud_module" not in sys.modules


def test_a_class_that_may_be_named_is_not_built_where_no_class_is_expected(folder):
    (folder / "close_by.py").write_text(LOUD)
    words = run_case("comment", logger(comment=spec("close_by.Loud"))).words
    run((*words, "--trainer.limit_train_batches=1", "--trainer.limit_val_batches=1"))
    assert sys.modules.pop("close_by", None)  # it was found
    assert not Path(TRACE).exists()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("class_path: chaosgate.FashionMNIST\ninit_args: &a {corruptions: [*a]}\n", "an alias contains itself"),
        ("class_path: chaosgate.FashionMNIST\ninit_args: {seed: 3, seed: 4}\n", "'seed' is given twice"),
    ],
)
def test_a_file_that_the_parser_reads_itself_is_read_as_strictly(content, says, folder):
    (folder / "data.yaml").write_text(content)
    status, printed = run((*run_case("data", {"data": "data.yaml"}).words, "--print_config"))
    assert status != 0 and says in printed
