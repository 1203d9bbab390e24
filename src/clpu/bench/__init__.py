"""The benchmark: methods × seeds on the tasks of a benchmark, actual and counterfactual.

`plan` lists the jobs, `measure` trains and measures, `run` combines what came out, on top of `clpu.runs`.
"""
