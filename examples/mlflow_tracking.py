"""A comparison in MLflow: one MLflow run per trained model, with curves and test results by slice.

Here everything goes to a temporary folder. With `MLFLOW_TRACKING_URI` set, it goes to your server.
"""

import os
import tempfile
from functools import cached_property

import mlflow

import headtail as ht
from headtail.comparison.compare import Execution
from headtail.training.callbacks import Callback
from headtail.training.config import Training


class MLflow(Callback):
    """Logs the training of one model."""

    def __init__(self, name, settings):
        self.name = name
        self.settings = settings

    @cached_property
    def run_id(self):
        """The run in MLflow, begun with the first number: a model that is there already has none.

        Runs are named by their ids, because several may train at the same time.
        """
        run_id = mlflow.MlflowClient().create_run("0", run_name=self.name).info.run_id
        mlflow.log_params(self.settings, run_id=run_id)
        return run_id

    def on_step(self, progress, loss):
        """Log the loss of the latest steps."""
        mlflow.log_metric("train/recent loss", loss, step=progress.step, run_id=self.run_id)

    def on_epoch(self, progress, metrics):
        """Log the epoch's loss and what was measured on held-out points."""
        named = {name.replace("@", "_at_"): value for name, value in metrics.items()}
        mlflow.log_metrics(named, step=progress.step, run_id=self.run_id)

    def on_end(self, progress):
        """Close the run."""
        status = "FINISHED" if progress.finished else "KILLED"
        mlflow.MlflowClient().set_terminated(self.run_id, status)


def main() -> None:
    """Train two schemes on generated data, and read MLflow's runs back."""
    with tempfile.TemporaryDirectory() as folder:
        if "MLFLOW_TRACKING_URI" not in os.environ:
            os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"  # recent versions ask for it
            mlflow.set_tracking_uri(f"file://{folder}/mlruns")
        followed = {}

        def callbacks(cell):
            followed[cell.run.scheme] = MLflow(cell.title, {"scheme": cell.run.scheme})
            return [followed[cell.run.scheme]]

        comparison = ht.compare(
            "synthetic:points=600,test=200,features=300,labels=60",
            ["softmax", "within-batch:tail"],
            out=f"{folder}/comparison",
            training=Training(dim=16, epochs=3, batch=64),
            device="cpu",
            execution=Execution(callbacks=callbacks),
        )
        for row in comparison.rows:
            if row.scheme in followed and (row.split, row.metric) == ("test", "recall@10"):
                run_id = followed[row.scheme].run_id
                mlflow.log_metric(f"test/recall_at_10/{row.slice}", row.value, run_id=run_id)
        for scheme, callback in followed.items():
            run = mlflow.get_run(callback.run_id)
            tail = run.data.metrics["test/recall_at_10/tail"]
            print(f"{scheme}: {run.info.status}, tail Recall@10 {100 * tail:.1f}%")


if __name__ == "__main__":
    main()
