//! `het profile show`.

use std::path::PathBuf;

use anstream::println;
use clap::Args;
use het_lab::measured::{TimelineProfile, Use, read_timeline};
use serde_json::{Value, json};

use crate::fail::{Fail, code};
use crate::output::{Form, object, plain_table, print_table};
use crate::workload::unusable;

#[derive(Debug, Args)]
pub struct ProfileShowArgs {
    /// `timeline.json` of a run of `het-train`.
    #[arg(value_name = "TIMELINE")]
    pub file: PathBuf,
    #[arg(short, long, value_enum, default_value_t = Form::Table)]
    pub output: Form,
}

/// Kernels that are shown.
const KERNELS_SHOWN: usize = 5;

/// A loss of less is not worth a word.
const LOSS_TOLD: f64 = 0.02;

pub(super) fn show(args: &ProfileShowArgs) -> Result<u8, Fail> {
    let profile = read_timeline(&args.file).map_err(|error| unusable(&error))?;
    object(&value(&profile), args.output, || draw(&profile));
    Ok(code::OK)
}

fn value(profile: &TimelineProfile) -> Value {
    let shares = Use::ALL.map(|of| (word(of).to_owned(), json!(profile.share(of))));
    let mut value = json!(profile);
    let devices = profile.devices.iter().map(|own| {
        let seconds = Use::ALL.into_iter().zip(own.seconds);
        let seconds = seconds.map(|(of, seconds)| (word(of).to_owned(), json!(seconds)));
        json!({ "device": own.device, "seconds": seconds.collect::<serde_json::Map<_, _>>() })
    });
    value["devices"] = devices.collect();
    value["shares"] = Value::Object(shares.into_iter().collect());
    value["limit"] = json!(profile.limit());
    value["largest_loss"] = json!(profile.largest_loss());
    value
}

fn draw(profile: &TimelineProfile) {
    let mut titles = vec!["DEVICE"];
    titles.extend(["COMPUTE", "COMMUNICATION", "IMBALANCE", "MEMORY", "SCHEDULING", "INPUT"]);
    let mut devices = plain_table(&titles);
    for own in &profile.devices {
        let all: f64 = own.seconds.iter().sum();
        let shares = own.seconds.map(|seconds| percent(seconds / all.max(f64::MIN_POSITIVE)));
        devices.add_row([own.device.clone()].into_iter().chain(shares));
    }
    print_table(&devices);
    println!();
    let mut kernels = plain_table(&["KERNEL", "TASKS", "SECONDS"]);
    for own in profile.kernels.iter().take(KERNELS_SHOWN) {
        let row = [own.kernel.clone(), own.tasks.to_string(), format!("{:.3}", own.seconds)];
        kernels.add_row(row);
    }
    print_table(&kernels);
    if !profile.copies.is_empty() {
        println!();
        let mut copies = plain_table(&["COPIES", "COUNT", "MIB", "SECONDS", "HIDDEN"]);
        for own in &profile.copies {
            let mebibytes = own.bytes as f64 / f64::from(1 << 20);
            copies.add_row([
                own.route.clone(),
                own.copies.to_string(),
                format!("{mebibytes:.1}"),
                format!("{:.3}", own.seconds),
                percent(own.hidden / own.seconds.max(f64::MIN_POSITIVE)),
            ]);
        }
        print_table(&copies);
    }
    println!();
    let limit = profile.limit();
    println!(
        "{:.1} s, limited by {}: {} of the devices' time",
        profile.seconds,
        word(limit),
        percent(profile.share(limit))
    );
    let loss = profile.largest_loss();
    if profile.share(loss) >= LOSS_TOLD {
        let share = percent(profile.share(loss));
        println!("most of what is lost is {}, {share}: {}", word(loss), advice(loss));
    }
    if profile.left_out > 0 {
        println!("{} tasks and copies were too many to be recorded", profile.left_out);
    }
}

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

fn word(of: Use) -> &'static str {
    match of {
        Use::Compute => "compute",
        Use::Communication => "communication",
        Use::Imbalance => "imbalance",
        Use::Memory => "memory",
        Use::Scheduling => "scheduling",
        Use::Input => "input",
    }
}

/// What can be done about it.
fn advice(loss: Use) -> &'static str {
    match loss {
        Use::Compute => "faster devices, or more of them",
        Use::Communication => {
            "a faster link, a larger batch or more accumulation, or an adapter in place of all \
             parameters"
        }
        Use::Imbalance => {
            "devices wait for others: a larger batch is divided more evenly, and a much slower \
             device may not be worth its part"
        }
        Use::Memory => "tasks wait for room: a smaller batch, or `--recompute`",
        Use::Scheduling => "tasks are short: a larger batch",
        Use::Input => "devices wait for the program: look at its data and at how often it saves",
    }
}
