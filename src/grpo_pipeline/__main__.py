"""Run the command line: ``python -m grpo_pipeline`` and ``grpo`` are ``kedro`` with the commands of ``cli.py``."""

from kedro.framework.cli.cli import main

if __name__ == "__main__":
    main()
