//! Colours and effects of a program's text: `Select Graphic Rendition` (ECMA-48, and the colours of
//! xterm).

use anstyle::{Ansi256Color, AnsiColor, Color, Effects, RgbColor, Style};

/// Parameters and the effect that they turn on.
const ON: [(u16, Effects); 9] = [
    (1, Effects::BOLD),
    (2, Effects::DIMMED),
    (3, Effects::ITALIC),
    (4, Effects::UNDERLINE),
    (5, Effects::BLINK),
    (7, Effects::INVERT),
    (8, Effects::HIDDEN),
    (9, Effects::STRIKETHROUGH),
    (21, Effects::DOUBLE_UNDERLINE),
];

/// Parameters and the effects that they turn off.
const OFF: [(u16, Effects); 7] = [
    (22, Effects::BOLD.insert(Effects::DIMMED)),
    (23, Effects::ITALIC),
    (24, Effects::UNDERLINE.insert(Effects::DOUBLE_UNDERLINE)),
    (25, Effects::BLINK),
    (27, Effects::INVERT),
    (28, Effects::HIDDEN),
    (29, Effects::STRIKETHROUGH),
];

const COLOURS: [AnsiColor; 8] = [
    AnsiColor::Black,
    AnsiColor::Red,
    AnsiColor::Green,
    AnsiColor::Yellow,
    AnsiColor::Blue,
    AnsiColor::Magenta,
    AnsiColor::Cyan,
    AnsiColor::White,
];

/// The style after a sequence; each parameter has subparameters where it was written with colons.
pub fn selected<'p>(mut style: Style, mut parameters: impl Iterator<Item = &'p [u16]>) -> Style {
    while let Some(parameter) = parameters.next() {
        let Some((&code, sub)) = parameter.split_first() else { continue };
        style = match code {
            0 => Style::new(),
            4 if sub == [0] => style.effects(style.get_effects().remove(Effects::UNDERLINE)),
            30..=37 => style.fg_color(Some(COLOURS[usize::from(code - 30)].into())),
            38 => style.fg_color(extended(sub, &mut parameters).or(style.get_fg_color())),
            39 => style.fg_color(None),
            40..=47 => style.bg_color(Some(COLOURS[usize::from(code - 40)].into())),
            48 => style.bg_color(extended(sub, &mut parameters).or(style.get_bg_color())),
            49 => style.bg_color(None),
            90..=97 => style.fg_color(Some(COLOURS[usize::from(code - 90)].bright(true).into())),
            100..=107 => style.bg_color(Some(COLOURS[usize::from(code - 100)].bright(true).into())),
            _ => with_effect(style, code),
        };
    }
    style
}

fn with_effect(style: Style, code: u16) -> Style {
    let named = |table: &[(u16, Effects)]| {
        table.iter().find(|(number, _)| *number == code).map(|(_, effects)| *effects)
    };
    let effects = style.get_effects();
    let on = named(&ON).map(|effect| effects.insert(effect));
    let off = named(&OFF).map(|effect| effects.remove(effect));
    style.effects(on.or(off).unwrap_or(effects))
}

/// A colour of the palette (`5;N`) or of its parts (`2;R;G;B`), behind colons or semicolons.
fn extended<'p>(sub: &[u16], rest: &mut impl Iterator<Item = &'p [u16]>) -> Option<Color> {
    let byte = |number: u16| u8::try_from(number).ok();
    let rgb = |r, g, b| Some(Color::Rgb(RgbColor(byte(r)?, byte(g)?, byte(b)?)));
    match sub {
        [5, index, ..] => Some(Ansi256Color(byte(*index)?).into()),
        // The first may be a colour space.
        [2, r, g, b] | [2, _, r, g, b, ..] => rgb(*r, *g, *b),
        [] => {
            let mut next = || rest.next().and_then(|parameter| parameter.first().copied());
            match next()? {
                5 => Some(Ansi256Color(byte(next()?)?).into()),
                2 => rgb(next()?, next()?, next()?),
                _ => None,
            }
        }
        _ => None,
    }
}
