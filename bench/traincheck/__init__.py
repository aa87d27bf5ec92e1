"""Silent errors that TrainCheck was measured on, written anew from their descriptions, and what is said of each here.

Jiang et al., "Training with Confidence: Catching Silent Errors in Deep Learning Training with Automated Proactive
Checks", OSDI 2025; the issues by number are those of its published artefact.
"""
