//! What each policy does, drawn: a small cluster, a queue, the expected plan.

use std::collections::BTreeSet;

use het_core::Name;
use het_perf::Rates;
use het_testkit::build::class;
use het_testkit::scene::play;

fn check(policy: &str, scene: &str, expected: &[&str]) {
    check_with(policy, &Rates::default(), scene, expected);
}

fn check_with(policy: &str, rates: &Rates, scene: &str, expected: &[&str]) {
    let told = play(policy, rates, scene);
    let told: Vec<&str> = told.lines().collect();
    assert_eq!(told, expected, "under `{policy}`");
}

#[test]
fn fifo_lets_nobody_pass_the_first() {
    let scene = "
        node h100 h100
        0s job 1 low h100:2
        0s run
        1s job 2 urgent h100:2
        2s job 3 low h100:1
        3s run
        9s ends 1
        9s run";
    check("fifo", scene, &["0s start 1 on n0/h1000 n0/h1001", "9s start 2 on n0/h1000 n0/h1001"]);
}

#[test]
fn static_passes_but_keeps_to_its_first_shape() {
    let scene = "
        node h100 a100
        0s job 1 normal h100
        0s run
        1s job 2 normal h100|a100
        2s job 3 normal a100
        3s run";
    check("static", scene, &["0s start 1 on n0/h1000", "3s start 3 on n0/a1000"]);
}

#[test]
fn dynamic_takes_the_shape_that_is_free() {
    let scene = "
        node h100 a100
        0s job 1 normal h100
        0s run
        1s job 2 normal h100|a100
        3s run";
    check("dynamic", scene, &["0s start 1 on n0/h1000", "3s start 2 on n0/a1000"]);
}

#[test]
fn hybrid_keeps_its_plan_for_a_minute() {
    let scene = "
        node h100 a100
        0s job 1 normal h100
        0s run
        1s job 2 normal h100|a100
        30s run
        61s run";
    check("hybrid", scene, &["0s start 1 on n0/h1000", "61s start 2 on n0/a1000"]);
}

#[test]
fn only_containers_get_virtual_npus() {
    let scene = "
        node vnpu vnpu cpu:1
        0s job 1 normal gpu
        0s job 2 normal gpu@container
        0s job 3 normal vnpu|cpu
        0s job 4 normal gpu
        0s job 5 normal gpu@container
        1s run
        62s run";
    // `hybrid` keeps to the first word of job 3 for a minute.
    let expected = ["start 2 on n0/vnpu0", "start 3 on n0/cpu0:1", "start 5 on n0/vnpu1"];
    for policy in ["static", "dynamic", "hybrid", "feedback", "adaptive"] {
        let told = play(policy, &Rates::default(), scene);
        let deeds = told.lines().filter_map(|line| line.split_once(' '));
        let deeds: BTreeSet<&str> = deeds.map(|(_, deed)| deed).collect();
        assert_eq!(deeds.into_iter().collect::<Vec<_>>(), expected, "under `{policy}`");
    }
}

#[test]
fn a_gang_takes_all_or_nothing() {
    let scene = "
        node h100 h100
        node h100
        0s job 1 normal h100:4
        0s job 2 normal h100:3
        1s run";
    check("adaptive", scene, &["1s start 2 on n0/h1000 n0/h1001 n1/h1000"]);
}

#[test]
fn a_gang_stands_in_as_few_nodes_as_it_can() {
    let scene = "
        node h100 h100 h100
        node h100 h100
        0s job 1 normal h100:2
        1s run";
    check("adaptive", scene, &["1s start 1 on n1/h1000 n1/h1001"]);
}

#[test]
fn urgent_preempts_low_and_the_freed_devices_are_its_own() {
    let scene = "
        node h100 h100
        0s job 1 low h100:2
        0s run
        5s saved 1 10
        20s job 2 urgent h100:1
        20s job 3 high h100:1
        20s run
        21s run
        25s saved 1 12
        25s stopped 1
        25s run";
    check(
        "adaptive",
        scene,
        &[
            "0s start 1 on n0/h1000 n0/h1001",
            "20s stop 1 for 2",
            "20s claim for 2 on n0/h1000",
            "20s claim for 3 on n0/h1001",
            "25s start 2 on n0/h1000",
            "25s start 3 on n0/h1001",
        ],
    );
}

#[test]
fn who_may_have_fewer_shrinks_for_the_urgent_and_grows_again() {
    let scene = "
        node h100 h100 h100 h100
        0s job 1 low h100:4|h100:2|h100:1 steps:100000
        0s run
        100s saved 1 100
        200s job 2 urgent h100:1
        200s run
        205s saved 1 205
        205s stopped 1
        205s run
        900s ends 2
        900s run
        905s saved 1 905
        905s stopped 1
        905s run";
    let mut rates = Rates::default();
    for (units, rate) in [(1, 1.0), (2, 1.9), (4, 3.6)] {
        rates.declare(&"train".into(), &"h100".into(), units, rate);
    }
    let expected = [
        "0s start 1 on n0/h1000 n0/h1001 n0/h1002 n0/h1003",
        "200s shrink 1 for 2",
        "200s claim for 1 on n0/h1001 n0/h1002",
        "200s claim for 2 on n0/h1000",
        "205s start 2 on n0/h1000",
        "205s start 1 on n0/h1001 n0/h1002 from step 205",
        "900s stop 1: migration",
        "900s claim for 1 on n0/h1000 n0/h1001 n0/h1002 n0/h1003",
        "905s start 1 on n0/h1000 n0/h1001 n0/h1002 n0/h1003 from step 905",
    ];
    check_with("adaptive", &rates, scene, &expected);
}

#[test]
fn equals_never_preempt_each_other() {
    let scene = "
        node h100
        0s job 1 high h100
        0s run
        20s job 2 high h100
        20s run";
    check("adaptive", scene, &["0s start 1 on n0/h1000"]);
}

#[test]
fn a_preempted_job_resumes_from_its_newest_checkpoint() {
    let scene = "
        node h100
        0s job 1 low h100
        0s run
        5s saved 1 10
        20s job 2 urgent h100
        20s run
        25s saved 1 12
        25s stopped 1
        25s run
        60s ends 2
        60s run";
    check(
        "dynamic",
        scene,
        &[
            "0s start 1 on n0/h1000",
            "20s stop 1 for 2",
            "20s claim for 2 on n0/h1000",
            "25s start 2 on n0/h1000",
            "60s start 1 on n0/h1000 from step 12",
        ],
    );
}

#[test]
fn preemption_that_costs_more_than_it_brings_is_left() {
    // Eight devices that would lose ten hours of work each, for one device.
    let scene = "
        node h100 h100 h100 h100 h100 h100 h100 h100
        0s job 1 normal h100:8
        0s run
        36000s job 2 high h100:1
        36000s run";
    let devices = (0..8).map(|n| format!("n0/h100{n}")).collect::<Vec<_>>().join(" ");
    check("adaptive", scene, &[&format!("0s start 1 on {devices}")]);
}

#[test]
fn a_lost_node_restarts_its_gang_elsewhere() {
    let scene = "
        node h100
        node h100
        0s job 1 normal h100
        0s run
        5s saved 1 7
        9s lost n0
        9s run";
    check("adaptive", scene, &["0s start 1 on n0/h1000", "9s start 1 on n1/h1000 from step 7"]);
}

#[test]
fn a_large_gang_that_others_pass_gets_devices_reserved() {
    let scene = "
        node h100 h100
        0s job 1 normal h100
        0s run
        1s job 2 normal h100:2
        1s run
        700s run
        701s job 3 normal h100
        701s run
        800s ends 1
        800s run";
    let expected = [
        "0s start 1 on n0/h1000",
        "700s claim for 2 on n0/h1000 n0/h1001",
        "800s start 2 on n0/h1000 n0/h1001",
    ];
    check("dynamic", scene, &expected);
    // Where time is shared, the gang need not wait for the end of an equal that has had much.
    let [first, claim, start] = expected;
    check("adaptive", scene, &[first, "700s stop 1: quantum", claim, start]);
}

#[test]
fn the_faster_shape_wins_where_speeds_are_known() {
    let mut rates = Rates::default();
    for (id, rate) in [("h100", 4.0), ("a100", 1.0)] {
        rates.declare(&Name::from("train"), &class(id, "gpu", 1).id, 1, rate);
    }
    let scene = "
        node a100 h100
        0s job 1 normal a100|h100
        0s run";
    check_with("adaptive", &rates, scene, &["0s start 1 on n0/h1000"]);
    // Nobody's speed is known: the order of the file stands.
    check("adaptive", scene, &["0s start 1 on n0/a1000"]);
}

#[test]
fn the_tenant_with_less_by_weight_goes_first() {
    let scene = "
        node h100 h100 h100
        0s quota shop 2 h100 - -
        0s quota lab 1 h100 - -
        0s job 1 normal h100 lab
        0s job 2 normal h100 lab
        0s job 3 normal h100 shop
        0s job 4 normal h100 shop
        0s run";
    let expected = ["0s start 1 on n0/h1000", "0s start 3 on n0/h1001", "0s start 4 on n0/h1002"];
    check("adaptive", scene, &expected);
}

#[test]
fn nobody_goes_beyond_a_limit() {
    let scene = "
        node h100 h100
        0s quota lab 1 h100 - 1
        0s job 1 normal h100 lab/nlp
        0s job 2 normal h100 lab/vision
        0s job 3 low h100 shop
        0s run";
    for policy in ["fifo", "static", "dynamic", "hybrid", "adaptive"] {
        check(policy, scene, &["0s start 1 on n0/h1000", "0s start 3 on n0/h1001"]);
    }
}

#[test]
fn what_was_borrowed_comes_back() {
    let scene = "
        node h100 h100
        0s quota lab 1 h100 1 -
        0s quota shop 1 h100 1 -
        0s job 1 high h100 shop
        0s job 2 high h100 shop
        0s run
        1s job 3 low h100 lab
        2s run
        3s stopped 1
        3s run";
    let expected = [
        "0s start 1 on n0/h1000",
        "0s start 2 on n0/h1001",
        "2s reclaim 1 for 3",
        "2s claim for 3 on n0/h1000",
        "3s start 3 on n0/h1000",
    ];
    check("adaptive", scene, &expected);
}

#[test]
fn urgency_does_not_take_what_another_tenant_owns() {
    let scene = "
        node h100
        0s quota lab 1 h100 1 -
        0s job 1 low h100 lab
        0s run
        1s job 2 urgent h100 shop
        2s run";
    check("adaptive", scene, &["0s start 1 on n0/h1000"]);
}

#[test]
fn static_keeps_what_it_could_not_take_back() {
    let scene = "
        node h100 h100
        0s quota lab 1 h100 1 -
        0s job 1 normal h100 shop
        0s job 2 normal h100 shop
        0s run
        1s job 3 normal h100 lab
        1s run";
    check("static", scene, &["0s start 1 on n0/h1000", "1s start 3 on n0/h1001"]);
    check(
        "dynamic",
        scene,
        &[
            "0s start 1 on n0/h1000",
            "0s start 2 on n0/h1001",
            "1s reclaim 1 for 3",
            "1s claim for 3 on n0/h1000",
        ],
    );
}

#[test]
fn in_order_by_fragmentation_a_single_goes_where_pairs_stay_whole() {
    let scene = "
        node h100 h100
        node h100 h100
        0s job 1 normal h100
        0s job 2 normal h100:2
        0s job 3 normal h100
        0s run";
    let expected =
        ["0s start 1 on n0/h1000", "0s start 2 on n1/h1000 n1/h1001", "0s start 3 on n0/h1001"];
    check("fgd", scene, &expected);
    check("best-fit", scene, &expected);
}

#[test]
fn in_order_nobody_waits_behind_one_that_does_not_fit() {
    let scene = "
        node h100
        node h100
        0s job 1 normal h100:3
        0s job 2 low h100:2
        0s run";
    for policy in ["fgd", "best-fit", "random"] {
        check(policy, scene, &["0s start 2 on n0/h1000 n1/h1000"]);
    }
}

#[test]
fn urgency_takes_from_borrowers_only_what_they_borrowed() {
    let scene = "
        node h100 h100 h100
        0s quota lab 1 h100 2 -
        0s job 1 low h100 lab
        0s job 2 low h100 lab
        0s job 3 low h100 lab
        0s run
        1s job 4 urgent h100:2 shop
        1s job 5 urgent h100 shop
        2s run";
    let expected = [
        "0s start 1 on n0/h1000",
        "0s start 2 on n0/h1001",
        "0s start 3 on n0/h1002",
        "2s stop 1 for 5",
        "2s claim for 5 on n0/h1000",
    ];
    check("adaptive", scene, &expected);
}

#[test]
fn an_owner_keeps_its_own_when_borrowers_give_back() {
    let scene = "
        node h100 h100
        0s quota lab 1 h100 1 -
        0s quota shop 1 h100 1 -
        0s job 1 low h100 lab
        0s job 2 high h100 guest
        0s run
        1s job 3 normal h100 shop
        2s run";
    let expected = [
        "0s start 2 on n0/h1001",
        "0s start 1 on n0/h1000",
        "2s reclaim 2 for 3",
        "2s claim for 3 on n0/h1001",
    ];
    check("adaptive", scene, &expected);
}

#[test]
fn who_has_had_much_gives_way_after_a_checkpoint() {
    let scene = "
        node h100 h100
        0s job 1 normal h100:2
        0s run
        200s job 2 normal h100:2
        200s run
        301s run
        310s saved 1 10
        310s run
        315s stopped 1
        315s run
        400s ends 2
        400s run";
    let expected = [
        "0s start 1 on n0/h1000 n0/h1001",
        "310s stop 1: quantum",
        "310s claim for 2 on n0/h1000 n0/h1001",
        "315s start 2 on n0/h1000 n0/h1001",
        "400s start 1 on n0/h1000 n0/h1001 from step 10",
    ];
    check("feedback", scene, &expected);
}

#[test]
fn equals_are_left_alone_for_a_quantum() {
    let scene = "
        node h100 h100
        0s job 1 normal h100:2
        0s run
        200s job 2 normal h100:2
        200s run
        359s run
        361s run
        365s saved 1 10
        365s stopped 1
        365s run
        700s run
        726s run";
    let expected = [
        "0s start 1 on n0/h1000 n0/h1001",
        "361s stop 1: quantum",
        "361s claim for 2 on n0/h1000 n0/h1001",
        "365s start 2 on n0/h1000 n0/h1001",
    ];
    check("adaptive", scene, &expected);
}

#[test]
fn an_urgent_one_does_not_wait_for_a_quantum() {
    let scene = "
        node h100 h100
        0s job 1 low h100:2
        0s run
        200s job 2 urgent h100:2
        200s run";
    let expected = [
        "0s start 1 on n0/h1000 n0/h1001",
        "200s stop 1 for 2",
        "200s claim for 2 on n0/h1000 n0/h1001",
    ];
    check("adaptive", scene, &expected);
}

#[test]
fn a_quantum_begins_with_each_start() {
    let scene = "
        node h100 h100
        0s job 1 normal h100:2
        0s run
        10s job 2 normal h100:2
        361s run
        365s saved 1 10
        365s stopped 1
        365s run
        700s run
        726s run
        1085s run";
    let expected = [
        "0s start 1 on n0/h1000 n0/h1001",
        "361s stop 1: quantum",
        "361s claim for 2 on n0/h1000 n0/h1001",
        "365s start 2 on n0/h1000 n0/h1001",
        "1085s stop 2: quantum",
        "1085s claim for 1 on n0/h1000 n0/h1001",
    ];
    check("adaptive", scene, &expected);
}

#[test]
fn equals_of_one_level_do_not_take_turns() {
    let scene = "
        node h100
        0s job 1 normal h100
        0s run
        200s job 2 normal h100
        200s saved 1 10
        200s run
        4000s ends 1
        4000s run";
    check("feedback", scene, &["0s start 1 on n0/h1000", "4000s start 2 on n0/h1000"]);
}

#[test]
fn a_higher_priority_does_not_give_way() {
    let scene = "
        node h100
        0s job 1 high h100
        0s run
        1000s job 2 normal h100
        1000s saved 1 10
        1000s run";
    check("feedback", scene, &["0s start 1 on n0/h1000"]);
}

#[test]
fn who_is_told_to_make_room_does_once_for_each_that_needs_it() {
    let scene = "
        node h100 h100 a100
        0s job 1 low h100
        0s job 2 low h100
        0s job 3 low a100
        0s run
        9s job 4 urgent h100
        9s job 5 urgent a100
        9s yields 1 4
        9s yields 2 4
        9s yields 3 5
        9s run
        12s run
        15s stopped 1
        15s stopped 3
        15s run";
    let expected = [
        "0s start 1 on n0/h1000",
        "0s start 2 on n0/h1001",
        "0s start 3 on n0/a1000",
        "9s stop 1 for 4",
        "9s stop 3 for 5",
        "9s claim for 4 on n0/h1000",
        "9s claim for 5 on n0/a1000",
        "15s start 4 on n0/h1000",
        "15s start 5 on n0/a1000",
    ];
    check("static", scene, &expected);
}

#[test]
fn nobody_makes_room_for_one_that_may_not_have_it() {
    let scene = "
        node h100
        0s quota lab 1 h100 - 0
        0s job 1 low h100
        0s run
        9s job 2 urgent h100 lab
        9s yields 1 2
        9s run";
    check("static", scene, &["0s start 1 on n0/h1000"]);
}

#[test]
fn what_is_not_preemptible_runs_to_its_end() {
    let scene = "
        node h100
        0s job 1 low h100 team last
        0s run
        500s job 2 urgent h100
        500s job 3 low h100
        500s run
        9000s run
        9001s ends 1
        9001s run";
    for policy in ["adaptive", "dynamic", "hybrid", "feedback"] {
        check(policy, scene, &["0s start 1 on n0/h1000", "9001s start 2 on n0/h1000"]);
    }
}

#[test]
fn a_least_time_to_run_passes_before_anybody_is_stopped() {
    let scene = "
        node h100
        0s job 1 low h100 team for:600
        0s run
        500s job 2 urgent h100
        500s run
        599s run
        600s run";
    let expected = ["0s start 1 on n0/h1000", "600s stop 1 for 2", "600s claim for 2 on n0/h1000"];
    check("adaptive", scene, &expected);
}

#[test]
fn what_is_not_preemptible_does_not_borrow() {
    let scene = "
        node h100 h100
        0s quota lab 1 h100 1 -
        0s job 1 high h100:2 lab last
        0s job 2 low h100:2 shop last
        0s job 3 low h100 lab last
        0s run";
    check("adaptive", scene, &["0s start 3 on n0/h1000"]);
}

#[test]
fn what_is_borrowed_comes_back_from_those_who_may_be_stopped() {
    let scene = "
        node h100 h100
        0s quota lab 1 h100 1 -
        0s quota shop 1 h100 1 -
        0s job 1 low h100 lab last
        0s run
        10s job 2 high h100 lab for:600
        10s run
        20s job 3 low h100 shop
        20s run";
    let expected = [
        "0s start 1 on n0/h1000",
        "10s start 2 on n0/h1001",
        "20s reclaim 2 for 3",
        "20s claim for 3 on n0/h1001",
    ];
    check("adaptive", scene, &expected);
}

#[test]
fn the_cheapest_set_is_stopped_not_the_cheapest_first() {
    // Of one device each the first two cost 60 and 50 device-seconds, the third 90 for both.
    let scene = "
        node h100 h100 h100 h100
        3s job 1 low h100
        3s run
        13s job 2 low h100
        13s run
        18s job 3 low h100:2
        18s run
        30s job 4 urgent h100:2
        30s run";
    let expected = [
        "3s start 1 on n0/h1000",
        "13s start 2 on n0/h1001",
        "18s start 3 on n0/h1002 n0/h1003",
        "30s stop 3 for 4",
        "30s claim for 4 on n0/h1002 n0/h1003",
    ];
    check("adaptive", scene, &expected);
}

#[test]
fn of_equal_costs_who_never_saved_goes_on() {
    let scene = "
        node h100 h100
        0s job 1 low h100
        0s job 2 low h100
        0s run
        0s saved 2 1
        20s job 3 urgent h100
        20s run";
    let expected = [
        "0s start 1 on n0/h1000",
        "0s start 2 on n0/h1001",
        "20s stop 2 for 3",
        "20s claim for 3 on n0/h1001",
    ];
    check("adaptive", scene, &expected);
}

#[test]
fn a_higher_priority_is_stopped_only_where_lower_ones_do_not_suffice() {
    let scene = "
        node h100 h100
        0s job 1 low h100
        0s run
        500s job 2 normal h100
        500s run
        501s job 3 urgent h100
        501s run";
    let expected = [
        "0s start 1 on n0/h1000",
        "500s start 2 on n0/h1001",
        "501s stop 1 for 3",
        "501s claim for 3 on n0/h1000",
    ];
    check("adaptive", scene, &expected);
}

/// One step a second for everybody.
fn a_step_a_second() -> Rates {
    let mut rates = Rates::default();
    rates.declare(&Name::from("train"), &class("h100", "gpu", 1).id, 1, 1.0);
    rates
}

#[test]
fn never_saving_is_no_shelter_beyond_the_work_that_would_be_lost() {
    let scene = |arrival: u64| {
        format!(
            "
            node h100
            0s job 1 normal h100 team never-saves steps:10000
            0s run
            {arrival}s job 2 normal h100 team steps:100
            {arrival}s run"
        )
    };
    let begins = "0s start 1 on n0/h1000";
    let (early, late) = (620, 6_000);
    let gives_way = [begins, "620s stop 1: quantum", "620s claim for 2 on n0/h1000"];
    for policy in ["adaptive", "feedback"] {
        check_with(policy, &a_step_a_second(), &scene(early), &gives_way);
        // Most of its work is done, and all of that would be lost.
        check_with(policy, &a_step_a_second(), &scene(late), &[begins]);
    }
}

#[test]
fn whoever_loses_all_at_every_stop_gets_longer_turns() {
    let scene = "
        node h100
        0s job 1 normal h100 team never-saves steps:10000
        0s run
        400s job 2 normal h100 team steps:100
        400s run
        401s stopped 1
        401s run
        500s ends 2
        500s run
        900s job 3 normal h100 team steps:100
        900s run
        1219s run
        1221s run";
    let expected = [
        "0s start 1 on n0/h1000",
        "400s stop 1: quantum",
        "400s claim for 2 on n0/h1000",
        "401s start 2 on n0/h1000",
        "500s start 1 on n0/h1000",
        "1221s stop 1: quantum",
        "1221s claim for 3 on n0/h1000",
    ];
    check_with("adaptive", &a_step_a_second(), scene, &expected);
}
