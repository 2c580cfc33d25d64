#!/bin/bash
#SBATCH --array=0-15%4
#SBATCH -o logs/%x-%A_%a.out
#SBATCH -e logs/%x-%A_%a.err
#SBATCH -G 1
#
# means: name = 05-array
# means: devices = gpu:1
# means: array = 0-15
# means: max_parallel = 4
# means: stdout = logs/05-array-{array}_{index}.out
# means: stderr = logs/05-array-{array}_{index}.err

python train.py
