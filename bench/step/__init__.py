"""What a watched step costs beside the step itself, in milliseconds of CPU time, by the number of parameters.

`bench/overhead` compares whole steps of two models with many numbers in few parameters, where a cost for each parameter
hides. Here the models have few numbers in many parameters.
"""
