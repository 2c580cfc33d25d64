//! The tokenizers: the tiny one always, the real one where its weights are cached.

use het_train::tokenizer::Tokenizer;
use het_train::weights::Source;
use het_train::{fetch, tiny};

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
