python train.py --clean --steps 4
