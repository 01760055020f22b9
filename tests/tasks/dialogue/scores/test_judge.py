"""A language model behind a server grades replies: asked as the protocol says, tried again, never an invented grade."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from grpo_pipeline.rewards.functions import load_function
from grpo_pipeline.rewards.measuring import measure_chunk
from grpo_pipeline.rewards.params import OwnReward
from grpo_pipeline.tasks.dialogue import json_server
from grpo_pipeline.tasks.dialogue.json_server import ask
from grpo_pipeline.tasks.dialogue.scores.judge import judge

PATH = "grpo_pipeline.tasks.dialogue.scores.judge:judge"


class Server(ThreadingHTTPServer):
    """Answers each request with the next of ``replies`` for its reply: a status, or the text of the judge."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[tuple[str, dict[str, Any], dict[str, str]]] = []
        self.answers: dict[str, list[int | str]] = {}
        self.lock, self.now, self.most = threading.Lock(), 0, 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1/"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.lock:
            self.server.asked.append((self.path, body, dict(self.headers)))
            self.server.now += 1
            self.server.most = max(self.server.most, self.server.now)
        reply = body["messages"][1]["content"].rpartition("Reply:\n")[2]
        answers = self.server.answers[reply]
        said = answers.pop(0) if len(answers) > 1 else answers[0]
        threading.Event().wait(0.02)
        with self.server.lock:
            self.server.now -= 1
        content = json.dumps({"choices": [{"message": {"content": said}}]}).encode()
        self.send_response(said if isinstance(said, int) else 200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *given: Any) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(json_server, "PAUSE_S", 0.001)
    with Server() as found:
        thread = threading.Thread(target=found.serve_forever)
        thread.start()
        yield found
        found.shutdown()
        thread.join()


def grade(server: Server, *replies: str, **options: Any) -> list[float]:
    given = {"url": server.url, "model": "m", "retries": 2, **options}
    return judge(replies, prompts=["a question"] * len(replies), answers=[["right"]] * len(replies), **given)


def test_a_grade_is_the_last_number_of_the_answer_and_the_judge_sees_everything(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_KEY", "secret")
    server.answers = {"good": ["I say 7.5"], "bad": ["0"]}
    assert grade(server, "good", "bad", best=10, instruction="Be fair.", key_variable="A_KEY") == [0.75, 0.0]
    path, body, headers = next(one for one in server.asked if one[1]["messages"][1]["content"].endswith("good"))
    assert (path, body["model"], body["temperature"]) == ("/v1/chat/completions", "m", 0)
    assert [one["content"] for one in body["messages"]] == [
        "Be fair.", "Prompt:\na question\n\nRight answer:\nright\n\nReply:\ngood"
    ]  # fmt: skip
    assert headers["Authorization"] == "Bearer secret"


def test_a_busy_server_is_asked_again_and_a_refusal_is_not(server: Server) -> None:
    server.answers = {"busy": [429, 503, "4"], "down": [500], "wrong": [400], "odd": ["well"], "much": ["11"]}
    assert grade(server, "busy") == [0.4]
    for reply, message in (("down", "must answer within 30 s, got status 500"), ("wrong", "status 400")):
        with pytest.raises(ConnectionError, match=message):
            grade(server, reply)
    for reply in ("odd", "much"):
        with pytest.raises(ValueError, match="the judge must answer a number from 0 to 10, got"):
            grade(server, reply)
    asked = [body["messages"][1]["content"].rpartition("\n")[2] for _, body, _ in server.asked]
    assert {reply: asked.count(reply) for reply in server.answers} == {"busy": 3, "down": 3, "wrong": 1, "odd": 1, "much": 1}


def test_no_more_requests_than_allowed_are_open_at_once(server: Server) -> None:
    server.answers = {f"r{n}": ["1"] for n in range(12)}
    assert grade(server, *server.answers, at_once=3) == [0.1] * 12
    assert server.most == 3


def test_it_is_an_own_reward(server: Server) -> None:
    """It has a limit of time and is measured twice, as a reward of the user's; a reply that it cannot grade costs no other."""
    server.answers = {"good": ["10"], "odd": ["well"]}
    measure = OwnReward(weight=1.0, function=PATH, options={"url": server.url, "model": "m"}).measure
    assert not measure.is_built_in
    texts = [("a question", "right")] * 2
    found = measure_chunk(load_function(PATH), measure.options, ["good", "odd"], texts)
    assert found[0] == 1.0
    assert "it raised ValueError: the judge must answer a number from 0 to 10, got 'well'" in found[1]


def test_a_server_that_is_not_there_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_server, "PAUSE_S", 0.001)
    with pytest.raises(ConnectionError, match=r"http://127.0.0.1:9/v1 must answer within 1 s, got URLError.*refused"):
        ask("http://127.0.0.1:9/v1", {}, timeout_s=1, retries=1)
