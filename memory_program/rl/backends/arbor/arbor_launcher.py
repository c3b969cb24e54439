"""Starts Arbor in its own environment, as a script; it imports nothing from memory_program.

It changes three things that Arbor 0.2.17 has no settings for. It selects GPUs by number. It gives several
training processes more than 90 seconds to load a model. Its trainer asks for a batch only when vLLM has the
new weights, and not one batch earlier.
"""

import argparse
import importlib
from functools import partial
from typing import Any

_LOADING_S = 1800.0


def main() -> None:
    """Serve until the process ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--host", required=True, help="address to listen on")
    parser.add_argument("--port", required=True, help="port to listen on")
    parser.add_argument("--arbor-config", required=True, help="Arbor's own configuration file")
    parser.add_argument("--gpus", required=True, help="GPUs that may be taken, those of inference first: 0,1")
    options = parser.parse_args()
    cli: Any = importlib.import_module("arbor.cli")  # Any: a package of another environment
    control: Any = importlib.import_module("arbor.server.services.comms.control_server")
    jobs: Any = importlib.import_module("arbor.server.services.jobs.grpo_job")
    module: Any = importlib.import_module("arbor.server.services.managers.gpu_manager")
    gpus = [int(gpu) for gpu in options.gpus.split(",")]

    class ChosenGPUs(module.GPUManager):  # allocates them in order; Arbor's own takes the lowest idle ones
        def allocate_gpus(self, job_id: str, num_gpus: int) -> list[int]:
            with self._lock:
                taken = {gpu for of_job in self.gpu_allocations.values() for gpu in of_job}
                idle = set(module.get_gpu_state()["free"]) - taken
                free = [gpu for gpu in gpus if gpu in idle]
                if len(free) < num_gpus:
                    raise module.GPUAllocationError(
                        f"{num_gpus} GPUs are asked for, and of {gpus} (arbor.yaml) only {free} are idle"
                    )
                self.gpu_allocations[job_id] = free[:num_gpus]
                return free[:num_gpus]

    cli.GPUManager = ChosenGPUs
    control.TrainerControlServer.wait_for_clients.__kwdefaults__["timeout"] = _LOADING_S
    jobs.ArborGRPOConfig = partial(jobs.ArborGRPOConfig, num_batches_ahead=0)
    cli.cli(["serve", "--host", options.host, "--port", options.port, "--arbor-config", options.arbor_config])


if __name__ == "__main__":
    main()
