#!/bin/bash
#SBATCH -J llama-ft
#SBATCH --gpus-per-node=h100:4
#SBATCH -c 32
#SBATCH -t 2-00:00:00
#
# means: name = llama-ft
# means: devices = h100:4
# means: cores = 32
# means: time_limit = 172800s
# means: stdout = slurm-{job}.out
# means: env SLURM_GPUS_PER_NODE = h100:4

python train.py
