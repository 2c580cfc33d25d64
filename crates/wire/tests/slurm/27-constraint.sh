#!/bin/bash
#SBATCH --gres=gpu:2
#SBATCH --constraint=a100|v100
#
# means: name = 27-constraint
# means: devices = a100:2 | v100:2
# means: stdout = slurm-{job}.out

python train.py
