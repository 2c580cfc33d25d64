//! Which shape for whom, so that everybody together gains most.

/// Sizes of the table beyond which an exact answer takes too long for a round.
const STATES_MAX: usize = 1 << 18;

/// A shape that somebody could have.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Choice {
    pub class: usize,
    pub units: u32,
    /// Over having nothing; a choice without gain is never taken.
    pub gain: f64,
}

/// At most one choice a row, the units of each class not exceeded, the sum of gains the largest:
/// the multiple-choice knapsack, by dynamic programming over what is left of each class (Kellerer,
/// Pferschy and Pisinger 2004, section 11.5). `None` where the table would be too large.
pub(crate) fn assign(capacity: &[u32], rows: &[Vec<Choice>]) -> Option<Vec<Option<usize>>> {
    let sizes: Vec<usize> = capacity.iter().map(|&units| units as usize + 1).collect();
    let states = sizes.iter().try_fold(1_usize, |all, size| all.checked_mul(*size))?;
    if states > STATES_MAX {
        return None;
    }
    let strides: Vec<usize> =
        (0..sizes.len()).map(|class| sizes[..class].iter().product()).collect();
    // Best sum of gains of the rows so far with so much used, and what the last row took for it.
    let mut best = vec![0.0_f32; states];
    let mut taken: Vec<Vec<u8>> = Vec::with_capacity(rows.len());
    for row in rows {
        let before = best.clone();
        let mut took = vec![0_u8; states];
        for (index, choice) in row.iter().enumerate().filter(|(_, choice)| choice.gain > 0.0) {
            let (gain, word) = (choice.gain as f32, index as u8 + 1);
            let (size, stride) = (sizes[choice.class], strides[choice.class]);
            let units = choice.units as usize;
            if units >= size {
                continue;
            }
            // Blocks in which only this class and those before it vary.
            let shift = units * stride;
            for block in (0..states).step_by(size * stride) {
                let reach = block + shift..block + size * stride;
                let from = &before[block..block + size * stride - shift];
                let to = best[reach.clone()].iter_mut().zip(&mut took[reach]);
                for ((sum, word_at), from) in to.zip(from) {
                    if from + gain > *sum {
                        *sum = from + gain;
                        *word_at = word;
                    }
                }
            }
        }
        taken.push(took);
    }
    // `best` at full use is the best of all, since using less is allowed everywhere.
    let mut at = states - 1;
    let mut chosen = vec![None; rows.len()];
    for (row, took) in taken.iter().enumerate().rev() {
        if let Some(index) = took[at].checked_sub(1) {
            let choice = rows[row][usize::from(index)];
            chosen[row] = Some(usize::from(index));
            at -= choice.units as usize * strides[choice.class];
        }
    }
    Some(chosen)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tries everything.
    fn brute_force(capacity: &[u32], rows: &[Vec<Choice>]) -> f64 {
        let Some((row, rest)) = rows.split_first() else { return 0.0 };
        let without = brute_force(capacity, rest);
        let with =
            row.iter().filter(|choice| choice.units <= capacity[choice.class]).map(|choice| {
                let mut left = capacity.to_vec();
                left[choice.class] -= choice.units;
                choice.gain + brute_force(&left, rest)
            });
        with.fold(without, f64::max)
    }

    #[test]
    fn nothing_better_exists() {
        let mut seed = 7_u64;
        let mut draw = |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) % below
        };
        for _ in 0..50 {
            let capacity = [draw(5) as u32, draw(4) as u32];
            let rows: Vec<Vec<Choice>> = (0..5)
                .map(|_| {
                    let choice = |_| Choice {
                        class: draw(2) as usize,
                        units: 1 + draw(3) as u32,
                        gain: draw(100) as f64 - 10.0,
                    };
                    (0..3).map(choice).collect()
                })
                .collect();
            let chosen = assign(&capacity, &rows).expect("a small table");
            let mut left = capacity.map(i64::from);
            let mut sum = 0.0;
            for (row, index) in rows.iter().zip(&chosen) {
                if let Some(index) = index {
                    left[row[*index].class] -= i64::from(row[*index].units);
                    sum += row[*index].gain;
                }
            }
            assert!(left.iter().all(|units| *units >= 0), "{left:?}");
            assert_eq!(sum, brute_force(&capacity, &rows));
        }
    }
}
