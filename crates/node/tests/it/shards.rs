//! Streams of shards through the Python helper.

use std::path::Path;
use std::process::Command;

use het_testkit::has_python;

/// Runs a script that knows `stream` and an empty directory `d`.
#[track_caller]
fn check(script: &str) {
    if !has_python() {
        return;
    }
    let dir = tempfile::tempdir().expect("a temporary directory can be made");
    let begin = format!(
        "import os, pathlib, threading\nfrom heterosis import stream\n\
         from heterosis.stream import ShardWriter, acknowledge, read_shards\n\
         d = pathlib.Path({:?})\n",
        dir.path().display().to_string()
    );
    let ended = Command::new("python3")
        .args(["-c", &(begin + script)])
        .env("PYTHONPATH", Path::new(env!("CARGO_MANIFEST_DIR")).join("../../python"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .output()
        .expect("it can be started");
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
}

#[test]
fn a_writer_is_as_far_ahead_as_it_may_and_no_further() {
    check(
        "
writer = ShardWriter(d, ahead_max=2)
for _ in range(2):
    assert not writer._is_too_far_ahead()
    writer.write(b'x')
assert writer._is_too_far_ahead()
acknowledge(d, 0)
assert not writer._is_too_far_ahead()
",
    );
}

#[test]
fn an_acknowledgement_never_goes_back() {
    check(
        "
acknowledge(d, 7)
acknowledge(d, 3)
assert stream._acknowledged(d, 'default') == 8
for rank in (0, 1):
    acknowledge(d, 9, rank=rank, world=2)
acknowledge(d, 1, rank=0, world=3)
assert stream._acknowledged(d, 'default') == 10
",
    );
}

#[test]
fn what_one_rank_still_needs_is_not_done_with() {
    check(
        "
acknowledge(d, 5, rank=0, world=2)
assert stream._acknowledged(d, 'default') == 0
acknowledge(d, 2, rank=1, world=2)
assert stream._acknowledged(d, 'default') == 3
",
    );
}

#[test]
fn ranks_write_one_stream_in_turns_and_go_on_where_each_was() {
    check(
        "
def write(rank, shards):
    writer = ShardWriter(d, rank=rank, world=2)
    for _ in range(shards):
        writer.write(str(writer.number).encode())
write(1, 1)
write(0, 3)
assert ShardWriter(d, rank=0, world=2).number == 6
assert ShardWriter(d, rank=1, world=2).number == 3
# One that goes on alone begins with what is missing.
assert ShardWriter(d).number == 3
write(1, 2)
(d / '_SUCCESS').touch()
assert [int(path.read_bytes()) for _, path in read_shards(d)] == list(range(6))
",
    );
}

#[test]
fn shards_that_were_removed_after_they_were_acknowledged_are_not_written_again() {
    check(
        "
writer = ShardWriter(d)
paths = [writer.write(b'x') for _ in range(5)]
acknowledge(d, 2)
for path in paths[:3]:
    path.unlink()
assert ShardWriter(d).number == 5
acknowledge(d, 4)
for path in paths[3:]:
    path.unlink()
assert ShardWriter(d).number == 5
assert ShardWriter(d, rank=0, world=2).number == 6
",
    );
}

#[test]
fn two_who_write_the_same_do_not_take_each_others_draft() {
    check(
        "
def write():
    for _ in range(200):
        stream._replace(d / 'same', b'whole')
        assert (d / 'same').read_bytes() == b'whole'
failed = []
threading.excepthook = failed.append
threads = [threading.Thread(target=write) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert not failed, failed
assert os.listdir(d) == ['same']
",
    );
}
