#!/bin/bash
#SBATCH --gpus=2
#SBATCH --mem-per-gpu=20G
#
# means: name = 32-mem-per-gpu
# means: devices = gpu:2
# means: memory = 40960MiB
# means: stdout = slurm-{job}.out

python train.py
