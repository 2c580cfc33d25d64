//! Steps of a tiny model as tasks: what they leave, and how they fail.

use super::*;
use crate::batch::Sequence;
use crate::optimiser::Settings;
use crate::tiny;

fn batch(length: u32, first: u32) -> Batch {
    let tokens = (0..length).map(|i| (first + i * 7) % 259).collect();
    let scored = vec![true; length as usize];
    Batch::pack([&Sequence { tokens, scored }], 64)
}

fn adapting() -> Executor {
    let weights = Arc::new(tiny::weights(1));
    let adapter = Adapter::random(&weights.architecture, 2, 4.0, 1);
    Executor::adapting(&weights, &adapter, Workers::default()).expect("it starts")
}

fn request(step: u64) -> Request {
    Request { settings: Settings::default(), scale: 0.1, rate: 0.01, step }
}

/// Loss and gradient of a step over these batches.
fn gradient(executor: &mut Executor, batches: &[Batch]) -> (f64, Vec<f32>) {
    executor.begin_step().expect("it begins");
    batches.iter().for_each(|batch| executor.add_gradients(batch).expect("a valid batch"));
    let loss = executor.step_loss().expect("it is computed");
    (loss, executor.adapter_gradient().expect("it is computed"))
}

/// Handles that have room for a longer batch serve a shorter one, and batches of a step wait for
/// each other.
#[test]
fn batches_of_a_step_add_up_in_any_order_of_lengths() {
    let batches = [batch(9, 1), batch(30, 2), batch(4, 3)];
    let mut one = adapting();
    let alone =
        batches.iter().map(|batch| gradient(&mut adapting(), std::slice::from_ref(batch)).0);
    let (loss, together) = gradient(&mut one, &batches);
    let alone: f64 = alone.sum();
    assert!((loss - alone).abs() < 1e-9 * alone, "{loss}, not {alone}");
    assert_eq!(gradient(&mut one, &batches), (loss, together), "the same again");
}

#[test]
fn every_kind_of_task_is_counted() {
    let mut executor = adapting();
    executor.set_recompute(Recompute::Layers);
    gradient(&mut executor, &[batch(9, 1), batch(9, 2)]);
    executor.update(request(1)).expect("it is computed");
    let counts: Vec<_> = executor.times().iter().map(|time| (time.kernel, time.count)).collect();
    let layers = executor.architecture().layers.len() as u64;
    let expected = [
        ("merge", layers),
        ("clear", layers),
        ("angles", 1),
        ("embedding", 2),
        ("layer_forward_only", 2 * layers),
        ("layer_recompute", 2 * layers),
        ("head", 2),
        ("layer_backward", 2 * layers),
        ("norm", 1),
        ("update", layers),
    ];
    assert_eq!(counts, expected);
}

#[test]
fn a_gradient_that_is_no_number_changes_nothing() {
    let mut executor = adapting();
    let before = executor.adapter().expect("it learns");
    executor.begin_step().expect("it begins");
    let (spoilt, length) = (executor.replicas[0].gradients[1], before.place(1).len());
    executor.add_gradients(&batch(9, 1)).expect("a valid batch");
    executor.settle().expect("all run");
    executor.tasks.give(spoilt, vec![f32::NAN; length]).expect("nobody uses it");
    let step = executor.update(request(1)).expect("it is computed");
    assert!(step.loss.is_finite() && !step.is_finite);
    assert_eq!(executor.adapter().expect("it learns"), before);
    let zero = |moments: &mut [AdamW]| {
        Ok(moments.iter().all(|own| own.first.iter().chain(&own.second).all(|value| *value == 0.0)))
    };
    assert!(executor.with_moments(zero).expect("they are there"));
}

#[test]
fn a_kernel_that_fails_ends_the_step_with_what_it_said() {
    let mut executor = adapting();
    executor.begin_step().expect("it begins");
    executor.settle().expect("all run");
    executor.tasks.give(executor.replicas[0].layers[1], 1.0).expect("nobody uses it");
    executor.add_gradients(&batch(9, 1)).expect("it is submitted");
    let error = executor.update(request(1)).expect_err("a layer is a number").to_string();
    assert!(error.contains("kernel `merge` failed: a handle does not hold a layer"), "{error}");
}

/// The second batch does not fit where the first one lay, so that it waits, and learns of the
/// failure, before its own tasks are submitted.
#[test]
fn a_later_batch_is_refused_with_what_an_earlier_one_said() {
    let mut executor = adapting();
    executor.begin_step().expect("it begins");
    executor.settle().expect("all run");
    executor.tasks.give(executor.replicas[0].layers[1], 1.0).expect("nobody uses it");
    executor.add_gradients(&batch(9, 1)).expect("it is submitted");
    let added = executor.add_gradients(&batch(30, 2)).map(|()| Step { loss: 0.0, is_finite: true });
    let error = added.and_then(|_| executor.update(request(1))).expect_err("a layer is a number");
    assert!(error.to_string().contains("a handle does not hold a layer"), "{error}");
}

#[test]
fn a_kernel_that_panics_ends_the_step_with_its_words() {
    let mut executor = adapting();
    executor.begin_step().expect("it begins");
    executor.settle().expect("all run");
    let empty = Content::Layer(Box::default());
    executor.tasks.give(executor.replicas[0].layers[0], empty).expect("nobody uses it");
    executor.add_gradients(&batch(9, 1)).expect("it is submitted");
    let error = executor.step_loss().expect_err("a layer has no weights").to_string();
    assert!(error.contains("kernel `merge` failed: it panicked: "), "{error}");
}

#[test]
fn what_was_taken_out_is_there_again() {
    let weights = tiny::weights(1);
    let mut executor =
        Executor::learning(weights.clone(), Numbers::F32, Workers::default()).expect("it starts");
    let loss = executor.loss(&batch(9, 1)).expect("a valid batch");
    let taken = executor.take_parameters().expect("they are there");
    assert_eq!(taken, weights.parameters);
    assert!(executor.loss(&batch(9, 1)).is_err(), "it has none now");
    let mut executor =
        Executor::learning(weights, Numbers::F32, Workers::default()).expect("it starts");
    executor.with_parameters(|_| Ok(())).expect("they are there");
    assert_eq!(executor.loss(&batch(9, 1)).expect("a valid batch"), loss);
    drop(taken);
}

#[test]
fn a_validation_that_fails_fails_no_step() {
    let (held_out, expected) = ([batch(9, 5)], gradient(&mut adapting(), &[batch(9, 1)]));
    let mut executor = adapting();
    let values = executor.learner.as_ref().expect("it learns").values[1];
    let kept = executor.tasks.take(values).expect("nobody uses it");
    executor.tasks.give(values, 1.0).expect("nobody uses it");
    executor.begin_validation(&held_out, None, When::BetweenSteps).expect("it is submitted");
    executor.tasks.give(values, kept).expect("the snapshot is another one");
    assert_eq!(gradient(&mut executor, &[batch(9, 1)]), expected);
    assert_eq!(executor.take_validated(true).expect("the step is none of it"), None);
    let news = executor.take_news().join("\n");
    let told = "no held-out loss, the training goes on: kernel `merge` failed: ";
    assert!(news.contains(told) && !news.contains('\n'), "{news}");

    let strange = Batch { tokens: vec![1 << 20; 9], ..batch(9, 5) };
    executor.begin_validation(&[strange], None, When::BetweenSteps).expect("it is no step");
    assert!(executor.take_news().join("").contains("no held-out loss"));
    executor.begin_validation(&held_out, None, When::BetweenSteps).expect("it is submitted");
    let validated = executor.take_validated(true).expect("it is computed").expect("its loss");
    assert!(validated.loss.is_finite());
    assert_eq!(gradient(&mut executor, &[batch(9, 1)]), expected);
}
