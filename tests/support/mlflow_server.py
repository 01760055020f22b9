"""A server that speaks as much of MLflow's protocol as a run needs, and can die."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Server(ThreadingHTTPServer):
    """Answers as MLflow does, until it has been sent a number of batches."""

    def __init__(self, artifacts, batches=10**9):
        super().__init__(("127.0.0.1", 0), Handler)
        self.artifacts, self.batches_left, self.runs, self.posted = str(artifacts), batches, 0, []
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()
        self.uri = f"http://127.0.0.1:{self.server_port}"

    def server_close(self):
        self.shutdown()  # else its thread would ask for the closed socket, without a pause, until the process ends
        super().server_close()

    def die(self):
        self.socket.close()
        threading.Thread(target=self.shutdown, daemon=True).start()


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path.startswith("/health"):
            return self.answer({})
        if "get-by-name" in self.path:
            return self.answer({"experiment": {"experiment_id": "1", "name": "tiny", "lifecycle_stage": "active"}})
        return self.answer({"run": {"info": {"run_id": "r", "artifact_uri": self.server.artifacts}, "data": {}}})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.posted.append((self.path.rpartition("mlflow/")[2], body))
        if self.path.endswith("log-batch") and body.get("metrics"):
            self.server.batches_left -= 1
            if self.server.batches_left < 0:
                self.server.die()
                return self.close()
        if self.path.endswith("runs/create"):
            self.server.runs += 1
            info = {"run_id": f"run{self.server.runs}", "status": "RUNNING", "artifact_uri": self.server.artifacts}
            return self.answer({"run": {"info": info, "data": {}}})
        return self.answer({})

    def answer(self, content):
        data = json.dumps(content).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def close(self):
        self.close_connection = True
        self.connection.close()

    def log_message(self, *args):
        pass
