//! Reads the part of the Common Expression Language that selectors of devices are written in.
//!
//! Grammar: `cel-spec` `doc/langdef.md`, without maps, comprehensions, arithmetic and macros other
//! than `has`. Expressions are anybody's to write, so how deep they are is bounded.

/// Deepest expression that is read, and the longest row of members of members in it.
const DEPTH_MAX: usize = 16;
const ROW_MAX: usize = 8;

/// An expression of which each part has a value.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Expression {
    Text(String),
    Number(i64),
    Flag(bool),
    List(Vec<Self>),
    /// The variable.
    Device,
    /// `of.name` and `of["name"]`.
    Member(Box<Self>, String),
    /// Whether a member is there.
    Has(Box<Self>),
    Call {
        function: Function,
        arguments: Vec<Self>,
    },
    Not(Box<Self>),
    All(Vec<Self>),
    Any(Vec<Self>),
    Compare(Comparison, Box<Self>, Box<Self>),
    In(Box<Self>, Box<Self>),
}

impl Expression {
    /// Its parts that are expressions.
    pub fn parts(&self) -> Vec<&Self> {
        match self {
            Self::Text(_) | Self::Number(_) | Self::Flag(_) | Self::Device => Vec::new(),
            Self::List(parts) | Self::All(parts) | Self::Any(parts) => parts.iter().collect(),
            Self::Call { arguments, .. } => arguments.iter().collect(),
            Self::Member(of, _) | Self::Has(of) | Self::Not(of) => vec![of],
            Self::Compare(_, one, other) | Self::In(one, other) => vec![one, other],
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Comparison {
    Equal,
    Other,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Function {
    Quantity,
    Version,
    CompareTo,
    IsGreaterThan,
    IsLessThan,
    StartsWith,
    EndsWith,
    Contains,
    Lower,
}

/// Its name, how it is called, and how many arguments it has with what it is a method of.
const FUNCTIONS: [(&str, bool, usize, Function); 9] = [
    ("quantity", false, 1, Function::Quantity),
    ("semver", false, 1, Function::Version),
    ("compareTo", true, 2, Function::CompareTo),
    ("isGreaterThan", true, 2, Function::IsGreaterThan),
    ("isLessThan", true, 2, Function::IsLessThan),
    ("startsWith", true, 2, Function::StartsWith),
    ("endsWith", true, 2, Function::EndsWith),
    ("contains", true, 2, Function::Contains),
    ("lowerAscii", true, 1, Function::Lower),
];

#[derive(Debug, Clone, PartialEq)]
enum Token {
    Word(String),
    Text(String),
    Number(i64),
    Sign(&'static str),
}

/// Longest first.
const SIGNS: [&str; 16] =
    ["&&", "||", "==", "!=", "<=", ">=", "<", ">", "!", "(", ")", "[", "]", ".", ",", "-"];

/// `None` of what is not of this part of the language.
pub(super) fn read(text: &str) -> Option<Expression> {
    let mut reader = Reader { tokens: tokens(text)?, at: 0, depth: 0 };
    let expression = reader.any()?;
    (reader.at == reader.tokens.len()).then_some(expression)
}

fn tokens(text: &str) -> Option<Vec<Token>> {
    let mut tokens = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let is_word = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
        let end_of = |is_part: fn(char) -> bool| rest.find(|it| !is_part(it)).unwrap_or(rest.len());
        let (token, length) = if matches!(first, '\'' | '"') {
            let (text, length) = quoted(rest, first)?;
            (Token::Text(text), length)
        } else if first.is_ascii_digit() {
            let end = end_of(|letter| letter.is_ascii_alphanumeric());
            (Token::Number(rest[..end].parse().ok()?), end)
        } else if is_word(first) {
            let end = end_of(|letter| letter.is_ascii_alphanumeric() || letter == '_');
            (Token::Word(rest[..end].to_owned()), end)
        } else {
            let sign = SIGNS.into_iter().find(|sign| rest.starts_with(sign))?;
            (Token::Sign(sign), sign.len())
        };
        tokens.push(token);
        rest = rest[length..].trim_start();
    }
    Some(tokens)
}

/// The text between two quotes, and how long it is with them.
fn quoted(rest: &str, quote: char) -> Option<(String, usize)> {
    let mut text = String::new();
    let mut letters = rest.char_indices().skip(1);
    while let Some((at, letter)) = letters.next() {
        match letter {
            letter if letter == quote => return Some((text, at + 1)),
            '\\' => text.push(match letters.next()?.1 {
                letter @ ('\\' | '\'' | '"') => letter,
                'n' => '\n',
                't' => '\t',
                _ => return None,
            }),
            '\n' | '\r' => return None,
            letter => text.push(letter),
        }
    }
    None
}

struct Reader {
    tokens: Vec<Token>,
    at: usize,
    depth: usize,
}

impl Reader {
    fn takes(&mut self, sign: &str) -> bool {
        let is_it = matches!(self.tokens.get(self.at), Some(Token::Sign(it)) if *it == sign);
        self.at += usize::from(is_it);
        is_it
    }

    fn next(&mut self) -> Option<Token> {
        let token = self.tokens.get(self.at)?.clone();
        self.at += 1;
        Some(token)
    }

    fn any(&mut self) -> Option<Expression> {
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return None;
        }
        let mut parts = vec![self.all()?];
        while self.takes("||") {
            parts.push(self.all()?);
        }
        self.depth -= 1;
        Some(one_or(parts, Expression::Any))
    }

    fn all(&mut self) -> Option<Expression> {
        let mut parts = vec![self.comparison()?];
        while self.takes("&&") {
            parts.push(self.comparison()?);
        }
        Some(one_or(parts, Expression::All))
    }

    /// Of several in a row nobody knows what is meant.
    fn comparison(&mut self) -> Option<Expression> {
        let one = self.not()?;
        if matches!(self.tokens.get(self.at), Some(Token::Word(word)) if word == "in") {
            self.at += 1;
            return Some(Expression::In(Box::new(one), Box::new(self.not()?)));
        }
        let comparison = match self.tokens.get(self.at) {
            Some(Token::Sign("==")) => Comparison::Equal,
            Some(Token::Sign("!=")) => Comparison::Other,
            Some(Token::Sign("<")) => Comparison::Less,
            Some(Token::Sign("<=")) => Comparison::LessOrEqual,
            Some(Token::Sign(">")) => Comparison::Greater,
            Some(Token::Sign(">=")) => Comparison::GreaterOrEqual,
            _ => return Some(one),
        };
        self.at += 1;
        Some(Expression::Compare(comparison, Box::new(one), Box::new(self.not()?)))
    }

    fn not(&mut self) -> Option<Expression> {
        let mut times = 0;
        while self.takes("!") {
            times += 1;
        }
        let of = self.member()?;
        // Twice is as good as any even number.
        let wraps = if times == 0 { 0 } else { 2 - times % 2 };
        Some((0..wraps).fold(of, |of, _| Expression::Not(Box::new(of))))
    }

    fn member(&mut self) -> Option<Expression> {
        let mut of = self.primary()?;
        let mut length = 0;
        loop {
            length += 1;
            if length > ROW_MAX {
                return None;
            }
            if self.takes(".") {
                let Some(Token::Word(name)) = self.next() else { return None };
                of = match self.takes("(") {
                    true => self.call(&name, Some(of))?,
                    false => Expression::Member(Box::new(of), name),
                };
            } else if self.takes("[") {
                let Some(Token::Text(name)) = self.next() else { return None };
                if !self.takes("]") {
                    return None;
                }
                of = Expression::Member(Box::new(of), name);
            } else {
                return Some(of);
            }
        }
    }

    fn primary(&mut self) -> Option<Expression> {
        match self.next()? {
            Token::Text(text) => Some(Expression::Text(text)),
            Token::Number(number) => Some(Expression::Number(number)),
            Token::Sign("-") => match self.next()? {
                Token::Number(number) => Some(Expression::Number(-number)),
                _ => None,
            },
            Token::Sign("(") => {
                let of = self.any()?;
                self.takes(")").then_some(of)
            }
            Token::Sign("[") => Some(Expression::List(self.list("]")?)),
            Token::Sign(_) => None,
            Token::Word(word) => match word.as_str() {
                "true" => Some(Expression::Flag(true)),
                "false" => Some(Expression::Flag(false)),
                "device" => Some(Expression::Device),
                "has" if self.takes("(") => match self.list(")")?.pop()? {
                    member @ Expression::Member(..) => Some(Expression::Has(Box::new(member))),
                    _ => None,
                },
                _ if self.takes("(") => self.call(&word, None),
                _ => None,
            },
        }
    }

    fn call(&mut self, name: &str, of: Option<Expression>) -> Option<Expression> {
        let is_method = of.is_some();
        let mut arguments: Vec<Expression> = of.into_iter().collect();
        arguments.extend(self.list(")")?);
        let function = FUNCTIONS.into_iter().find(|(known, method, count, _)| {
            *known == name && *method == is_method && *count == arguments.len()
        });
        function.map(|(.., function)| Expression::Call { function, arguments })
    }

    fn list(&mut self, end: &str) -> Option<Vec<Expression>> {
        let mut parts = Vec::new();
        while !self.takes(end) {
            parts.push(self.any()?);
            if !self.takes(",") {
                return self.takes(end).then_some(parts);
            }
        }
        Some(parts)
    }
}

fn one_or(mut parts: Vec<Expression>, several: fn(Vec<Expression>) -> Expression) -> Expression {
    match parts.len() {
        1 => parts.remove(0),
        _ => several(parts),
    }
}
