//! Kinds of training data: tokens and answers as `transformers` has them, and bounded reading.
//!
//! `reference/data.py` made the expected numbers.

use het_train::error::Error;
use het_train::split::{self, INDEX_BYTES, ReadAt, Split};
use het_train::tokenizer::Tokenizer;
use het_train::tokens;
use het_train::weights::Source;
use het_train::{export, tiny};
use serde::Deserialize;
use serde_json::{Map, Value as Json, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

#[derive(Deserialize)]
struct Reference {
    templates: Map<String, Json>,
    chats: Vec<Chat>,
    alpaca: Vec<Alpaca>,
}

#[derive(Deserialize)]
struct Chat {
    template: String,
    messages: Json,
    tokens: Vec<u32>,
    answers: Vec<u8>,
}

#[derive(Deserialize)]
struct Alpaca {
    tokens: Vec<u32>,
    /// How many of them are the prompt
    given: usize,
    #[serde(flatten)]
    record: Map<String, Json>,
}

fn reference_path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/reference").join(name)
}

fn reference() -> Reference {
    let text = fs::read_to_string(reference_path("data.json")).expect("it is there");
    serde_json::from_str(&text).expect("it is the reference")
}

/// The tokenizer of the reference with one of its templates.
fn tokenizer(directory: &Path, template: &Json) -> Tokenizer {
    let tiny = tiny::tokenizer().expect("built in");
    export::hub(&tiny::weights(1), &tiny, directory).expect("written");
    fs::copy(reference_path("bpe.json"), directory.join("tokenizer.json")).expect("copied");
    let config = json!({"bos_token": {"content": "<s>"}, "eos_token": "</s>",
                        "chat_template": template});
    fs::write(directory.join("tokenizer_config.json"), config.to_string()).expect("written");
    let source = Source::open(&directory.display().to_string()).expect("it opens");
    Tokenizer::of(&source).expect("it is known")
}

fn lines(path: &Path, records: impl IntoIterator<Item = Json>) {
    let text: String = records.into_iter().map(|record| format!("{record}\n")).collect();
    fs::write(path, text).expect("written");
}

/// Tokenises records that are all for training, but for a copy of the first.
fn tokenised(directory: &Path, records: Vec<Json>, tokenizer: &Tokenizer) -> Split {
    let (input, output) = (directory.join("input"), directory.join("tokens"));
    fs::create_dir_all(&input).expect("created");
    lines(&input.join("heldout.jsonl"), [records[0].clone()]);
    lines(&input.join("train.jsonl"), records);
    tokens::tokenize(&input, &output, tokenizer, None).expect("it is known");
    Split::open(&output, split::TRAIN, tokenizer).expect("it was written")
}

#[test]
fn conversations_are_tokenised_and_scored_as_transformers_does() {
    let reference = reference();
    let directory = tempfile::tempdir().expect("a temporary directory");
    for (name, template) in &reference.templates {
        let tokenizer = tokenizer(&directory.path().join(name), template);
        let chats: Vec<_> = reference.chats.iter().filter(|c| c.template == *name).collect();
        assert!(chats.len() >= 4, "{name}");
        let records = chats.iter().map(|chat| json!({"messages": chat.messages})).collect();
        let split = tokenised(directory.path(), records, &tokenizer);
        for (index, chat) in chats.iter().enumerate() {
            let found = split.sequence(index, usize::MAX).expect("it is there");
            assert_eq!(found.tokens, chat.tokens, "{name} {index}");
            let answers: Vec<bool> = chat.answers.iter().map(|&answer| answer == 1).collect();
            assert_eq!(found.scored, answers, "{name} {index}");
            assert!(answers.contains(&true) && answers.contains(&false));
        }
    }
}

#[test]
fn other_ways_to_write_a_conversation_are_the_same_conversation() {
    let reference = reference();
    let directory = tempfile::tempdir().expect("a temporary directory");
    let tokenizer = tokenizer(&directory.path().join("model"), &reference.templates["chatml"]);
    let chats = reference.chats.iter().filter(|chat| chat.template == "chatml");
    let chats: Vec<_> = chats.collect();
    let share_gpt = |chat: &&Chat| {
        let turns = chat.messages.as_array().expect("turns").iter().map(|turn| {
            let from = match turn["role"].as_str() {
                Some("user") => "human",
                Some("assistant") => "gpt",
                _ => "system",
            };
            json!({"from": from, "value": turn["content"]})
        });
        json!({"conversations": turns.collect::<Vec<_>>(), "id": 7})
    };
    let split = tokenised(directory.path(), chats.iter().map(share_gpt).collect(), &tokenizer);
    let check = |split: &Split, index: usize, chat: &Chat| {
        assert_eq!(split.sequence(index, usize::MAX).expect("there").tokens, chat.tokens);
    };
    chats.iter().enumerate().for_each(|(index, chat)| check(&split, index, chat));
    // The same as Parquet, of which the second record is held out.
    let output = directory.path().join("parquet");
    let input = reference_path("chats.parquet");
    let manifest = tokens::tokenize(&input, &output, &tokenizer, None).expect("it is known");
    assert_eq!((manifest.train_sequences, manifest.held_out_sequences), (chats.len() - 1, 1));
    assert_eq!(manifest.unused, ["id"]);
    let split = Split::open(&output, split::HELD_OUT, &tokenizer).expect("it was written");
    check(&split, 0, chats[1]);
}

#[test]
fn alpaca_is_asked_as_published_and_answers_end() {
    let reference = reference();
    let directory = tempfile::tempdir().expect("a temporary directory");
    let tokenizer = tokenizer(&directory.path().join("model"), &Json::Null);
    let records = reference.alpaca.iter().map(|alpaca| Json::Object(alpaca.record.clone()));
    let split = tokenised(directory.path(), records.collect(), &tokenizer);
    for (index, alpaca) in reference.alpaca.iter().enumerate() {
        let found = split.sequence(index, usize::MAX).expect("it is there");
        assert_eq!(found.tokens, alpaca.tokens);
        let first = found.scored.iter().position(|&scored| scored);
        assert_eq!(first, Some(alpaca.given));
        assert!(found.scored[alpaca.given..].iter().all(|&scored| scored));
    }
}

#[test]
fn completions_and_texts_end_with_the_end_of_a_text() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let tokenizer = tokenizer(&directory.path().join("model"), &Json::Null);
    let end = tokenizer.id_of("</s>");
    let pair = json!({"prompt": "How many legs?", "completion": " eight", "text": "unused"});
    let split = tokenised(directory.path(), vec![pair], &tokenizer);
    let pair = split.sequence(0, usize::MAX).expect("it is there");
    assert_eq!(pair.tokens.last().copied(), end);
    let answer: Vec<u32> =
        pair.tokens.iter().zip(&pair.scored).filter(|(_, s)| **s).map(|(t, _)| *t).collect();
    assert_eq!(tokenizer.decode(&answer).expect("it decodes"), " eight");
    let split = tokenised(directory.path(), vec![json!({"text": "a b"})], &tokenizer);
    let text = split.sequence(0, usize::MAX).expect("it is there");
    assert_eq!(text.tokens.last().copied(), end);
    assert!(text.scored.iter().all(|&scored| scored));
}

/// Bytes in memory, and how many of them were asked for.
#[derive(Debug)]
struct Counting {
    bytes: Vec<u8>,
    asked: Arc<AtomicUsize>,
    largest: Arc<AtomicUsize>,
}

impl ReadAt for Counting {
    fn fill(&self, buffer: &mut [u8], start: u64) -> std::io::Result<()> {
        self.asked.fetch_add(buffer.len(), Relaxed);
        self.largest.fetch_max(buffer.len(), Relaxed);
        buffer.copy_from_slice(&self.bytes[start as usize..][..buffer.len()]);
        Ok(())
    }
}

#[test]
fn a_split_reads_its_index_and_the_sequences_that_are_asked_for() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let tokenizer = tokenizer(&directory.path().join("model"), &Json::Null);
    let records: Vec<Json> = (0..300)
        .map(|index| json!({"text": "a spider has legs ".repeat(1 + index % 40)}))
        .collect();
    let whole = tokenised(directory.path(), records, &tokenizer);
    let path = directory.path().join("tokens").join(split::TRAIN);
    let bytes = fs::read(&path).expect("it was written");
    let (asked, largest) = (Arc::default(), Arc::default());
    let counting =
        Counting { asked: Arc::clone(&asked), largest: Arc::clone(&largest), bytes: bytes.clone() };
    let split = Split::of(&path, Box::new(counting), bytes.len() as u64).expect("it is sound");
    let header = 8 + u64::from_le_bytes(*bytes.first_chunk().expect("a header")) as usize;
    assert_eq!(asked.swap(0, Relaxed), header + split.count() * INDEX_BYTES);
    largest.store(0, Relaxed);
    for index in [299, 0, 7, 7] {
        let found = split.sequence(index, 50).expect("it is there");
        let read = split.length(index).min(50);
        assert_eq!(asked.swap(0, Relaxed), 5 * read);
        let all = whole.sequence(index, usize::MAX).expect("it is there");
        assert_eq!(found.tokens, all.tokens[..read]);
    }
    assert!(largest.load(Relaxed) <= 4 * 50);
    // Any tool that knows safetensors may read it.
    let read = safetensors::SafeTensors::deserialize(&bytes).expect("it is sound");
    assert_eq!(read.tensor("ends").expect("it is there").shape(), [300]);
}

#[test]
fn the_first_record_decides_and_others_are_held_to_it() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let tokenizer = tokenizer(&directory.path().join("model"), &Json::Null);
    let (input, output) = (directory.path().join("mixed.jsonl"), directory.path().join("out"));
    let text = json!({"text": "a b c"});
    lines(&input, [text.clone(), text.clone(), json!({"prompt": "a", "completion": "b"})]);
    let error = tokens::tokenize(&input, &output, &tokenizer, None).expect_err("it is mixed");
    let said = error.to_string();
    assert!(said.contains("line 3 of `") && said.contains("it has no `text`"), "{said}");
    assert!(!output.exists(), "nothing is left");
    // What was there stays.
    lines(&input, [text.clone(), text.clone(), text]);
    tokens::tokenize(&input, &output, &tokenizer, None).expect("it is one kind");
    let before = fs::read(output.join(split::TRAIN)).expect("written");
    lines(&input, [json!({"words": 1})]);
    let error = tokens::tokenize(&input, &output, &tokenizer, None).expect_err("it is of no kind");
    assert!(matches!(error, Error::Record { .. }) && error.hint().is_some(), "{error}");
    assert_eq!(fs::read(output.join(split::TRAIN)).expect("still there"), before);
    assert!(output.join("tokens.json").exists());
}
