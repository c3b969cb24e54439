"""Stands in for the executable ``vllm``: starts ``tests/model_server.py`` on the port that it is given.

With ``--enable-lora`` it starts ``tests/lora_server.py`` with the model of the folder that it is given.

``VLLM_STAND_IN`` says how: empty starts at once, ``slow`` after a second, ``fail`` ends with an error as vLLM
writes it, ``stubborn`` does not end at SIGTERM. Each start adds a line to the file ``VLLM_STARTS``: its
process id, that of a child process of its own (as vLLM has one for its engine), and the arguments.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from tests.model_server import ModelServer

if __name__ == "__main__":
    how, arguments = os.environ.get("VLLM_STAND_IN", ""), sys.argv[1:]
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    with open(os.environ["VLLM_STARTS"], "a", encoding="utf-8") as starts:
        starts.write(f"{os.getpid()} {child.pid} {' '.join(arguments)}\n")
    print("INFO loading the weights", flush=True)
    if how == "fail":
        print(
            "(EngineCore pid=7) ERROR ValueError: To serve a request, 2.00 GiB KV cache is needed", flush=True
        )
        sys.exit("RuntimeError: Engine core initialization failed. See root cause above.")
    if how == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if how == "slow":
        time.sleep(1)
    port = int(arguments[arguments.index("--port") + 1])
    if "--enable-lora" in arguments:
        from tests.lora_server import LoraServer  # slow to import

        if os.environ.get("VLLM_ALLOW_RUNTIME_LORA_UPDATING") != "True":
            sys.exit("ValueError: adapters cannot be updated")
        server = LoraServer(Path(arguments[1]), port=port)
    else:
        server = ModelServer(port=port)
    with server:
        threading.Event().wait()
