//! Layers over the stages of a pipeline whose devices differ: the exact optimum.
//!
//! Layers are alike, so a stage's time and memory grow by a fixed amount with each, and the
//! programme over stage boundaries has a closed form: for a limit on the slowest stage every other
//! stage has a largest number of layers, and the least sum is had by filling the fastest first.
//! What is left is to try the few limits that can be best. Tests hold this against all cuts.

/// A stage to be: what one layer adds for one microbatch, and how many it can hold.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Slot {
    pub layer_s: f64,
    /// Seconds beside the layers: logits and loss on the last stage.
    pub fixed_s: f64,
    /// By memory.
    pub layers_max: u32,
}

/// Room for rounding where a limit is divided by the time of a layer.
const SLACK: f64 = 1e-9;

/// Layers of each stage for the least `het_perf::training::pipeline_time_s`, every stage with a
/// multiple of `virtual_stages` of them and at least one such; among equals those that differ
/// least. `None` where they do not fit.
pub(crate) fn split(
    layers: u32,
    slots: &[Slot],
    microbatches: u32,
    virtual_stages: u32,
) -> Option<Vec<u32>> {
    let pieces = virtual_stages.max(1);
    let units = layers / pieces;
    let fits = layers.is_multiple_of(pieces) && !slots.is_empty() && units >= slots.len() as u32;
    let scaled: Vec<Slot> = slots.iter().map(|slot| in_units(slot, pieces, units)).collect();
    let room: u32 = scaled.iter().map(|slot| slot.layers_max).sum();
    if !fits || room < units || scaled.iter().any(|slot| slot.layers_max == 0) {
        return None;
    }
    let mut order: Vec<usize> = (0..scaled.len()).collect();
    order.sort_by(|a, b| scaled[*a].layer_s.total_cmp(&scaled[*b].layer_s));
    let least = least_s(&scaled, &order, units, f64::INFINITY)?;
    let taken =
        |limit: f64, all: f64| f64::from(microbatches) * limit + (all - limit) / f64::from(pieces);
    let limits = limits(&scaled, units);
    let first = limits.partition_point(|limit| holds(&scaled, *limit) < units);
    let mut best: Option<(f64, f64)> = None;
    for &limit in &limits[first..] {
        let better = |time: f64| best.is_none_or(|(least, _)| time < least * (1.0 - SLACK));
        if !better(taken(limit, least)) {
            break;
        }
        let Some(all) = least_s(&scaled, &order, units, limit) else { continue };
        if better(taken(limit, all)) {
            best = Some((taken(limit, all), limit));
        }
    }
    let shares = fill(&scaled, units, best?.1)?;
    Some(shares.into_iter().map(|units| units * pieces).collect())
}

/// Seconds of all stages together within a limit at the least: what can go to the faster does.
fn least_s(slots: &[Slot], order: &[usize], units: u32, limit: f64) -> Option<f64> {
    let mut left = units.checked_sub(slots.len() as u32)?;
    let mut sum = 0.0;
    for slot in order.iter().map(|at| &slots[*at]) {
        let given = left.min(most(slot, limit).saturating_sub(1));
        left -= given;
        sum += time(slot, given + 1);
    }
    (left == 0).then_some(sum)
}

fn in_units(slot: &Slot, pieces: u32, units: u32) -> Slot {
    Slot {
        layer_s: slot.layer_s * f64::from(pieces),
        fixed_s: slot.fixed_s,
        layers_max: (slot.layers_max / pieces).min(units),
    }
}

fn time(slot: &Slot, units: u32) -> f64 {
    slot.layer_s * f64::from(units) + slot.fixed_s
}

/// Every time that a stage can take, ascending.
fn limits(slots: &[Slot], units: u32) -> Vec<f64> {
    let mut kinds: Vec<(f64, f64)> = Vec::new();
    for slot in slots {
        if !kinds.contains(&(slot.layer_s, slot.fixed_s)) {
            kinds.push((slot.layer_s, slot.fixed_s));
        }
    }
    let times = |(layer_s, fixed_s): &(f64, f64)| {
        let (layer_s, fixed_s) = (*layer_s, *fixed_s);
        (1..=units).map(move |count| layer_s * f64::from(count) + fixed_s)
    };
    let mut limits: Vec<f64> = kinds.iter().flat_map(times).collect();
    limits.sort_by(f64::total_cmp);
    limits.dedup();
    limits
}

/// Most units of a stage within a limit.
fn most(slot: &Slot, limit: f64) -> u32 {
    let by_time = ((limit - slot.fixed_s) / slot.layer_s + SLACK).floor().max(0.0);
    slot.layers_max.min(by_time as u32)
}

/// Units that all stages can take within a limit; none where one of them cannot take a single one.
fn holds(slots: &[Slot], limit: f64) -> u32 {
    let mut sum = 0;
    for slot in slots {
        match most(slot, limit) {
            0 => return 0,
            units => sum += units,
        }
    }
    sum
}

/// Units of each stage within a limit: the fastest full, the rest one each, in between evenly.
fn fill(slots: &[Slot], units: u32, limit: f64) -> Option<Vec<u32>> {
    let most: Vec<u32> = slots.iter().map(|slot| most(slot, limit)).collect();
    let mut speeds: Vec<f64> = slots.iter().map(|slot| slot.layer_s).collect();
    speeds.sort_by(f64::total_cmp);
    speeds.dedup();
    let mut shares = vec![1; slots.len()];
    let mut left = units.checked_sub(slots.len() as u32)?;
    for speed in speeds {
        let class: Vec<usize> = (0..slots.len()).filter(|at| slots[*at].layer_s == speed).collect();
        let room: u32 = class.iter().map(|at| most[*at].saturating_sub(1)).sum();
        let given = left.min(room);
        level(slots, &most, &class, given, &mut shares);
        left -= given;
    }
    (left == 0).then_some(shares)
}

/// Gives so many more units to stages of one speed, so that they end as equally as they can; the
/// later of equals first, which hold fewer microbatches.
fn level(slots: &[Slot], most: &[u32], class: &[usize], given: u32, shares: &mut [u32]) {
    let count = class.len() as u32;
    let mut left = given;
    let even = 1 + given / count.max(1);
    for &at in class {
        let speed = slots[at].layer_s;
        let behind = (slots[at].fixed_s / speed).ceil().min(f64::from(even)) as u32;
        let base = even.saturating_sub(behind).clamp(1, most[at].max(1));
        left -= base - shares[at];
        shares[at] = base;
    }
    while left > 0 {
        let open = class.iter().copied().filter(|at| shares[*at] < most[*at]);
        let next = open.min_by(|a, b| {
            let ends = |at: usize| time(&slots[at], shares[at] + 1);
            ends(*a).total_cmp(&ends(*b)).then(b.cmp(a))
        });
        let Some(at) = next else { return };
        shares[at] += 1;
        left -= 1;
    }
}

#[cfg(test)]
mod tests {
    use het_perf::training::pipeline_time_s;
    use proptest::prelude::*;

    use super::*;

    fn slot(layer_s: f64, layers_max: u32) -> Slot {
        Slot { layer_s, fixed_s: 0.0, layers_max }
    }

    fn taken(slots: &[Slot], layers: &[u32], microbatches: u32, pieces: u32) -> f64 {
        let times: Vec<f64> =
            slots.iter().zip(layers).map(|(slot, layers)| time(slot, *layers)).collect();
        pipeline_time_s(&times, microbatches, pieces)
    }

    /// All cuts, one after the other.
    fn brute(
        slots: &[Slot],
        layers: u32,
        microbatches: u32,
        pieces: u32,
        cut: &mut Vec<u32>,
    ) -> Option<f64> {
        let at = cut.len();
        if at == slots.len() {
            return (layers == 0).then(|| taken(slots, cut, microbatches, pieces));
        }
        let mut best: Option<f64> = None;
        for own in (pieces..=layers.min(slots[at].layers_max)).step_by(pieces as usize) {
            cut.push(own);
            if let Some(time) = brute(slots, layers - own, microbatches, pieces, cut) {
                best = Some(best.map_or(time, |best| best.min(time)));
            }
            cut.pop();
        }
        best
    }

    #[test]
    fn equal_devices_get_equal_shares_and_slow_ones_fewer_layers() {
        let check = |slots: &[Slot], layers, expected: Option<Vec<u32>>| {
            assert_eq!(split(layers, slots, 16, 1), expected);
        };
        check(&[slot(1.0, 99); 4], 12, Some(vec![3; 4]));
        check(&[slot(1.0, 99); 4], 10, Some(vec![2, 2, 3, 3]));
        check(&[slot(1.0, 99), slot(2.0, 99)], 12, Some(vec![8, 4]));
        check(&[slot(1.0, 5), slot(2.0, 99)], 12, Some(vec![5, 7]));
        check(&[slot(1.0, 5), slot(2.0, 6)], 12, None);
        check(&[slot(1.0, 5); 3], 2, None);
        let head = Slot { fixed_s: 2.0, ..slot(1.0, 99) };
        check(&[slot(1.0, 99), slot(1.0, 99), head], 13, Some(vec![5, 5, 3]));
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

        #[test]
        fn no_cut_is_faster(
            speeds in proptest::collection::vec((1_u32..6, 1_u32..8), 1..5),
            head in 0_u32..4,
            layers in 1_u32..13,
            microbatches in 1_u32..9,
            pieces in 1_u32..3,
        ) {
            let mut slots: Vec<Slot> = speeds
                .iter()
                .map(|(speed, most)| slot(f64::from(*speed) * 0.37, *most))
                .collect();
            slots.last_mut().expect("one at least").fixed_s = f64::from(head) * 0.81;
            let best = brute(&slots, layers, microbatches, pieces, &mut Vec::new());
            let found = split(layers, &slots, microbatches, pieces);
            let found = found.map(|cut| {
                assert_eq!(cut.iter().sum::<u32>(), layers);
                assert!(cut.iter().zip(&slots).all(|(own, slot)| *own <= slot.layers_max));
                taken(&slots, &cut, microbatches, pieces)
            });
            match (best, found) {
                (None, None) => {}
                (Some(best), Some(found)) => prop_assert!((found / best - 1.0).abs() < 1e-9),
                other => prop_assert!(false, "{other:?}"),
            }
        }

        #[test]
        fn equal_devices_differ_by_one_layer_at_most(
            stages in 1_u32..17,
            layers in 1_u32..97,
            microbatches in 1_u32..33,
        ) {
            let slots = vec![slot(1.0, 96); stages as usize];
            let cut = split(layers, &slots, microbatches, 1);
            prop_assert_eq!(cut.is_some(), layers >= stages);
            if let Some(cut) = cut {
                let (least, most) = (cut.iter().min(), cut.iter().max());
                prop_assert!(most.copied() <= least.map(|least| least + 1));
            }
        }
    }
}
