#!/bin/bash
#SBATCH --array=0-3
#SBATCH --dependency=aftercorr:40
#
# means: name = 13-after-corr
# means: array = 0-3
# means: after = 40[=]:ok
# means: stdout = slurm-{array}_{index}.out

python train.py
