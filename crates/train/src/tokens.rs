//! From files of records or text to splits of tokens, in one pass and within bounded memory.

use crate::batch::Sequence;
use crate::dataset::kinds::{Kind, Record, Turn};
use crate::dataset::records::{Blocks, Entry, Lines, Rows, wrong};
use crate::dataset::{self, Example};
use crate::error::{Error, IoContext, Result};
use crate::split::{MANIFEST, Manifest, Writer};
use crate::template::Template;
use crate::tokenizer::Tokenizer;
use crate::whole;
use jiff::civil::Date;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use crate::split::{HELD_OUT, TRAIN};

/// Plain text is cut into sequences of this many tokens.
const TEXT_LENGTH: usize = 256;
/// Where nothing was set apart, one sequence of this many is held out, up to the most.
const HELD_OUT_EVERY: usize = 10;
const HELD_OUT_MAX: usize = 1000;

/// Tokenises a file, or a directory with `train*` and, where they are set apart, `heldout*` files.
///
/// What a file holds follows from its beginning. A chat template that asks for today's date is
/// told `today`, and refused without. Either everything is written, or `output` is as it was.
pub fn tokenize(
    input: &Path,
    output: &Path,
    tokenizer: &Tokenizer,
    today: Option<Date>,
) -> Result<Manifest> {
    let inputs = Inputs::find(input)?;
    let is_new = !output.exists();
    fs::create_dir_all(output).at("create", output)?;
    let reader = Reader { tokenizer, today, template: None };
    let written = write(&inputs, output, reader);
    if written.is_err() && is_new {
        let _ = fs::remove_dir(output);
    }
    written
}

/// The files of the input, in the order of their names.
struct Inputs {
    given: PathBuf,
    train: Vec<PathBuf>,
    /// Empty where none are set apart.
    held_out: Vec<PathBuf>,
}

impl Inputs {
    fn find(input: &Path) -> Result<Self> {
        let given = input.to_owned();
        if !input.is_dir() {
            return Ok(Self { given, train: vec![input.to_owned()], held_out: Vec::new() });
        }
        let mut paths = Vec::new();
        for entry in fs::read_dir(input).at("read", input)? {
            paths.push(entry.at("read", input)?.path());
        }
        paths.sort();
        let named = |word: &str| -> Vec<PathBuf> {
            let of = |path: &&PathBuf| {
                let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
                let ending = path.extension().and_then(OsStr::to_str);
                name.starts_with(word) && matches!(ending, Some("jsonl" | "parquet" | "txt"))
            };
            paths.iter().filter(of).cloned().collect()
        };
        let (train, held_out) = (named("train"), named("heldout"));
        if train.is_empty() {
            let what = "it has no file `train*.jsonl`, `train*.parquet` or `train*.txt`".into();
            return Err(Error::Corpus { path: given, what });
        }
        Ok(Self { given, train, held_out })
    }
}

/// What is written, until all of it is there.
struct Output<'a> {
    directory: &'a Path,
    train: Writer,
    held_out: Writer,
    /// Generation needs the held-out requests in words, so they travel with the tokens.
    requests: Option<BufWriter<File>>,
    /// Sequences so far of an input of which none are set apart.
    seen: usize,
    unused: BTreeSet<String>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Half {
    Train,
    HeldOut,
    /// One in [`HELD_OUT_EVERY`] is held out.
    Either,
}

impl Output<'_> {
    fn push(&mut self, half: Half, sequence: &Sequence, request: Option<&Example>) -> Result<()> {
        let is_held_out = match half {
            Half::Train => false,
            Half::HeldOut => true,
            Half::Either => {
                self.seen += 1;
                self.seen % HELD_OUT_EVERY == 2 && self.held_out.sequences < HELD_OUT_MAX
            }
        };
        if !is_held_out {
            return self.train.push(sequence, self.directory);
        }
        if let Some(request) = request {
            let file = match &mut self.requests {
                Some(file) => file,
                none => {
                    let file = tempfile::tempfile_in(self.directory);
                    none.insert(BufWriter::new(file.at("create a file in", self.directory)?))
                }
            };
            let line = serde_json::to_string(request).expect("two strings always serialise");
            writeln!(file, "{line}").at("write", self.directory)?;
        }
        self.held_out.push(sequence, self.directory)
    }

    /// Gives every file its name, the manifest last: a directory that has it is whole.
    fn finish(self, tokenizer: &Tokenizer) -> Result<Manifest> {
        let manifest = Manifest {
            tokenizer: tokenizer.fingerprint(),
            train_sequences: self.train.sequences,
            train_tokens: self.train.tokens,
            held_out_sequences: self.held_out.sequences,
            held_out_tokens: self.held_out.tokens,
            unused: self.unused.into_iter().collect(),
        };
        let path = self.directory.join(MANIFEST);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(error).at("replace", &path);
            }
            _ => {}
        }
        self.train.finish(&self.directory.join(TRAIN))?;
        self.held_out.finish(&self.directory.join(HELD_OUT))?;
        if let Some(requests) = self.requests {
            let to = self.directory.join(dataset::HELD_OUT_FILE);
            let mut from = requests.into_inner().map_err(|error| error.into_error());
            let from = from.as_mut().map_err(|error| std::io::Error::from(error.kind()));
            let from = from.at("write", &to)?;
            std::io::Seek::rewind(from).at("write", &to)?;
            whole::write_with(&to, |file| std::io::copy(from, file).map(|_| ()))?;
        }
        let text = serde_json::to_string_pretty(&manifest).expect("a plain struct serialises");
        whole::write(&path, text.as_bytes())?;
        Ok(manifest)
    }
}

fn write(inputs: &Inputs, directory: &Path, mut reader: Reader<'_>) -> Result<Manifest> {
    let mut output = Output {
        directory,
        train: Writer::new(directory)?,
        held_out: Writer::new(directory)?,
        requests: None,
        seen: 0,
        unused: BTreeSet::new(),
    };
    let first = if inputs.held_out.is_empty() { Half::Either } else { Half::Train };
    for path in &inputs.train {
        reader.file(path, first, &mut output)?;
    }
    for path in &inputs.held_out {
        reader.file(path, Half::HeldOut, &mut output)?;
    }
    let (train, held_out) = (output.train.sequences, output.held_out.sequences);
    let wrong = |what: String| Err(Error::Corpus { path: inputs.given.clone(), what });
    match (train, held_out) {
        (0, _) => return wrong("it holds nothing to train on".into()),
        (_, 0) if first == Half::Either => {
            let tokens = output.train.tokens;
            return wrong(format!("its {tokens} tokens make too few sequences to hold one out"));
        }
        (_, 0) => return wrong("its held-out files hold nothing".into()),
        _ => {}
    }
    output.finish(reader.tokenizer)
}

/// Turns records into sequences.
struct Reader<'a> {
    tokenizer: &'a Tokenizer,
    today: Option<Date>,
    /// Parsed when the first conversation asks for it.
    template: Option<Template>,
}

impl Reader<'_> {
    fn file(&mut self, path: &Path, half: Half, output: &mut Output<'_>) -> Result<()> {
        let mut file = File::open(path).at("open", path)?;
        let mut head = [0; 4];
        let length = read_up_to(&mut file, &mut head).at("read", path)?;
        let is_text = path.extension().is_some_and(|ending| ending == "txt");
        let head = &head[..length];
        if head == b"PAR1" {
            let mut rows = Rows::open(path)?;
            return self.records(path, half, output, || rows.next_entry());
        }
        let first = head.trim_ascii_start().first();
        let is_objects = path.extension().is_some_and(|ending| ending == "jsonl")
            || matches!(first, Some(b'{' | b'['));
        let bytes = head.chain(file);
        if is_objects && !is_text {
            let mut lines = Lines::new(path, bytes);
            return self.records(path, half, output, || lines.next_entry());
        }
        self.text(Blocks::new(path, bytes), half, output)
    }

    fn records(
        &mut self,
        path: &Path,
        half: Half,
        output: &mut Output<'_>,
        mut next: impl FnMut() -> Result<Option<Entry>>,
    ) -> Result<()> {
        const HINT: &str = "rewrite the record or leave it out: all records of a file have the \
                            keys of one kind, `messages`, `conversations`, `instruction` and \
                            `output`, `prompt` and `completion`, or `text`";
        let mut kind = None;
        while let Some(Entry { place, object }) = next()? {
            let broken = |what: String| wrong(path, &place, what, HINT);
            let kind = match kind {
                Some(kind) => kind,
                None => *kind.insert(Kind::of(&object).map_err(broken)?),
            };
            let record = kind.read(&object).map_err(broken)?;
            let unused = object.iter().filter(|(key, value)| !value.is_null() && !kind.uses(key));
            output.unused.extend(unused.map(|(key, _)| key.clone()));
            let sequence = self.sequence(&record, path, &place)?;
            let request = match &record {
                Record::Request(example) => Some(example),
                _ => None,
            };
            output.push(half, &sequence, request)?;
        }
        match kind {
            Some(_) => Ok(()),
            None => {
                Err(Error::Corpus { path: path.to_owned(), what: "it holds no records".into() })
            }
        }
    }

    fn sequence(&mut self, record: &Record, path: &Path, place: &str) -> Result<Sequence> {
        let sequence = match record {
            Record::Request(Example { request, job }) => {
                let mut tokens = self.tokenizer.prompt(request)?;
                let mut scored = vec![false; tokens.len()];
                tokens.extend(self.tokenizer.answer(job)?);
                scored.resize(tokens.len(), true);
                Sequence { tokens, scored }
            }
            Record::Chat(turns) => self.chat(turns, path, place)?,
            Record::Answer { prompt, answer } => {
                let Some(end) = self.tokenizer.end_of_text() else {
                    let what = "the tokenizer names no token that ends an answer";
                    let hint = "add `eos_token` to the model's tokenizer_config.json";
                    return Err(wrong(path, place, what, hint));
                };
                let text = format!("{prompt}{answer}");
                let answers = prompt.len()..text.len();
                let marked = self.tokenizer.encode_marked(&text, &[answers], true)?;
                let mut sequence = Sequence { tokens: marked.tokens, scored: marked.answers };
                if sequence.tokens.last() == Some(&end) {
                    sequence.tokens.pop();
                    sequence.scored.pop();
                }
                sequence.tokens.push(end);
                sequence.scored.push(true);
                sequence
            }
            Record::Text(text) => {
                let mut tokens = self.tokenizer.encode_whole(text)?;
                let end = self.tokenizer.end_of_text();
                tokens.extend(end.filter(|end| tokens.last() != Some(end)));
                Sequence { scored: vec![true; tokens.len()], tokens }
            }
        };
        match sequence.tokens.len() {
            0 | 1 => Err(wrong(
                path,
                place,
                "it has fewer than two tokens, which leaves nothing to predict",
                "leave the record out, or give it a text",
            )),
            _ => Ok(sequence),
        }
    }

    fn chat(&mut self, turns: &[Turn], path: &Path, place: &str) -> Result<Sequence> {
        const HINT: &str = "change the record, or the `chat_template` of the model";
        let template = match &mut self.template {
            Some(template) => template,
            none => {
                let parsed = template_of(self.tokenizer, self.today);
                none.insert(parsed.map_err(|(what, hint)| wrong(path, place, what, hint))?)
            }
        };
        let rendered = template.render(turns).map_err(|what| wrong(path, place, what, HINT))?;
        let text = &rendered.text;
        let answers: Vec<_> = rendered
            .answers
            .into_iter()
            .map(|range| {
                // White space behind the token that ends a turn is never asked for.
                let end = text[range.clone()].trim_end();
                match self.tokenizer.ends_with_special(end) {
                    true => range.start..range.start + end.len(),
                    false => range,
                }
            })
            .collect();
        let marked = self.tokenizer.encode_marked(text, &answers, false)?;
        Ok(Sequence { tokens: marked.tokens, scored: marked.answers })
    }

    fn text<R: Read>(
        &self,
        mut blocks: Blocks<R>,
        half: Half,
        output: &mut Output<'_>,
    ) -> Result<()> {
        let mut rest = Vec::new();
        let push = |tokens: &[u32], output: &mut Output<'_>| {
            let scored = vec![true; tokens.len()];
            output.push(half, &Sequence { tokens: tokens.to_vec(), scored }, None)
        };
        while let Some(block) = blocks.next_block()? {
            rest.extend(self.tokenizer.encode(&block)?);
            let whole = rest.len() / TEXT_LENGTH * TEXT_LENGTH;
            for piece in rest[..whole].chunks(TEXT_LENGTH) {
                push(piece, output)?;
            }
            rest.drain(..whole);
        }
        if rest.len() > 1 {
            push(&rest, output)?;
        }
        Ok(())
    }
}

/// The tokenizer's chat template, or what is wrong with it and the next step.
fn template_of(
    tokenizer: &Tokenizer,
    today: Option<Date>,
) -> std::result::Result<Template, (String, &'static str)> {
    const CHAT: &str = "take a model that was tuned to chat, put its `chat_template.jinja` beside \
                        the tokenizer, or write `prompt` and `completion` instead of turns";
    const TODAY: &str = "pass `--date YYYY-MM-DD`, the day that it is to write";
    let special = tokenizer.special();
    let Some(source) = &special.template else {
        let what = "the tokenizer has no `chat_template`, which conversations need";
        return Err((what.into(), CHAT));
    };
    let template = Template::parse(source, special.named(), today).map_err(|what| (what, CHAT))?;
    if today.is_none() && template.asks_for_today() {
        let what = "the chat template writes today's date (`strftime_now`), so that the tokens \
                    would be others tomorrow";
        return Err((what.into(), TODAY));
    }
    Ok(template)
}

/// As many bytes as there are, at most the buffer's.
fn read_up_to(file: &mut File, buffer: &mut [u8]) -> std::io::Result<usize> {
    let mut length = 0;
    while length < buffer.len() {
        match file.read(&mut buffer[length..])? {
            0 => break,
            read => length += read,
        }
    }
    Ok(length)
}
