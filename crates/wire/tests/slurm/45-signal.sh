#!/bin/bash
#SBATCH --signal=B:KILL@5
# refused: `KILL`
true
