//! The tokenizers: the tiny one always, the real one where its weights are cached.

use het_train::tokenizer::Tokenizer;
use het_train::weights::Source;
use het_train::{fetch, tiny};
use serde_json::{Value as Json, json};

fn check(tokenizer: &Tokenizer, text: &str) {
    let tokens = tokenizer.encode(text).expect("it encodes");
    assert_eq!(tokenizer.decode(&tokens).expect("it decodes"), text);
}

#[test]
fn the_tiny_tokenizer_keeps_every_byte() {
    let tokenizer = tiny::tokenizer().expect("built in");
    check(&tokenizer, "devices: \"h100:8 | a100:16\"\nünï ✓ 123");
    assert_eq!(tokenizer.answer("a").expect("it encodes").last().copied(), tokenizer.end());
}

/// A file keeps the settings of the program that saved it last.
#[test]
fn nothing_is_cut_or_filled_as_the_file_says() {
    let plain = tiny::tokenizer().expect("built in");
    let mut json: Json = serde_json::from_slice(plain.json()).expect("JSON");
    json["truncation"] = json!({"direction": "Right", "max_length": 4, "stride": 0,
                                "strategy": "LongestFirst"});
    json["padding"] = json!({"strategy": {"Fixed": 32}, "direction": "Right", "pad_id": 0,
                             "pad_to_multiple_of": null, "pad_type_id": 0, "pad_token": "x"});
    let saved = Tokenizer::from_json(json.to_string().into_bytes()).expect("it is known");
    let text = "abcdefgh";
    let tokens = saved.encode(text).expect("it encodes");
    assert_eq!(tokens, plain.encode(text).expect("it encodes"));
    assert_eq!(saved.encode_whole(text).expect("it encodes"), tokens);
}

#[test]
fn the_real_tokenizer_agrees_with_the_reference() {
    let Ok(Some(path)) = fetch::cached() else {
        eprintln!("SKIPPED: `het-train fetch smollm2-135m` was never run here");
        return;
    };
    let source = Source::open(&path.display().to_string()).expect("it opens");
    let tokenizer = Tokenizer::of(&source).expect("it has one");
    check(&tokenizer, "devices: \"h100:8 | a100:16\"\nünï ✓ 123");
    // Ids that Hugging Face's SmolLM2-135M-Instruct gives: digits apart, control tokens whole.
    let tokens = tokenizer.encode("The capital of France is").expect("it encodes");
    assert_eq!(tokens, [504, 3575, 282, 4649, 314]);
    let prompt = tokenizer.prompt("x 12").expect("it encodes");
    assert_eq!((prompt[0], prompt.iter().filter(|&&token| token == 1).count()), (1, 3));
    assert_eq!(tokenizer.encode("12345").expect("it encodes").len(), 5);
}
