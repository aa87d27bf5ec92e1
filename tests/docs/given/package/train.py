import runpy

runpy.run_path("train.py")
