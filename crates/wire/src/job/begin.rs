//! Times before which a job is not to begin: `18:00`, `tomorrow`, `now+1h`, `2026-12-24T18:00`.
//! The words are those of sbatch(1), `--begin`.

use het_core::Time;
use jiff::civil::{Date, Time as TimeOfDay, time};
use jiff::{Span, Timestamp, ToSpan, Zoned};

use crate::quantity;

/// What to write instead of a time that cannot be read.
pub const BEGIN_HINT: &str =
    "write for example `18:00`, `tomorrow`, `now+90m` or `2026-12-24T18:00`";

/// The instant that a text means at `now`, in the time zone of `now`. A time of day that is over
/// is that of tomorrow.
pub fn begin(text: &str, now: &Zoned) -> Option<Time> {
    let text = text.trim();
    if let Ok(instant) = text.parse::<Timestamp>() {
        return at(instant);
    }
    let lower = text.to_ascii_lowercase();
    if let Some(rest) = lower.strip_prefix("now") {
        return from_now(rest, now);
    }
    if let Some((day, hour)) = lower.split_once('t')
        && let (Some(day), Some(hour)) = (calendar_day(day, now), time_of_day(hour))
    {
        return instant(day, hour, now);
    }
    match lower.as_str() {
        "today" => return at(now.timestamp()),
        "tomorrow" => return instant(now.date().tomorrow().ok()?, time(0, 0, 0, 0), now),
        _ => {}
    }
    if let Some(hour) = time_of_day(&lower) {
        let today = instant(now.date(), hour, now)?;
        let is_over = today < at(now.timestamp())?;
        let day = if is_over { now.date().tomorrow().ok()? } else { now.date() };
        return instant(day, hour, now);
    }
    instant(calendar_day(&lower, now)?, time(0, 0, 0, 0), now)
}

fn at(instant: Timestamp) -> Option<Time> {
    u64::try_from(instant.as_millisecond()).ok().map(Time)
}

fn instant(day: Date, hour: TimeOfDay, now: &Zoned) -> Option<Time> {
    at(day.to_datetime(hour).to_zoned(now.time_zone().clone()).ok()?.timestamp())
}

/// ``, `+1h30m`, or as sbatch has it `+60` in seconds, `+2hours`, `+3days`.
fn from_now(rest: &str, now: &Zoned) -> Option<Time> {
    let rest = rest.trim();
    if rest.is_empty() {
        return at(now.timestamp());
    }
    let text = rest.strip_prefix('+')?.trim();
    if let Some(span) = quantity::duration(text) {
        return Some(at(now.timestamp())? + span);
    }
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (count, unit) = (text[..split].parse::<i64>().ok()?, text[split..].trim());
    let span = match unit {
        "" | "second" | "seconds" => Span::new().try_seconds(count),
        "minute" | "minutes" => Span::new().try_minutes(count),
        "hour" | "hours" => Span::new().try_hours(count),
        "day" | "days" => Span::new().try_days(count),
        "week" | "weeks" => Span::new().try_weeks(count),
        _ => return None,
    };
    at(now.checked_add(span.ok()?).ok()?.timestamp())
}

/// `HH:MM[:SS][am|pm]`, and the words of sbatch(1).
fn time_of_day(text: &str) -> Option<TimeOfDay> {
    let hour = |hour| Some(time(hour, 0, 0, 0));
    match text {
        "midnight" => return hour(0),
        "noon" => return hour(12),
        "elevenses" => return hour(11),
        "fika" => return hour(15),
        "teatime" => return hour(16),
        _ => {}
    }
    let (text, afternoon) = match (text.strip_suffix("am"), text.strip_suffix("pm")) {
        (Some(text), _) => (text.trim(), Some(false)),
        (_, Some(text)) => (text.trim(), Some(true)),
        _ => (text, None),
    };
    let parts: Vec<i8> = text.split(':').map(|part| part.parse().ok()).collect::<Option<_>>()?;
    let (hour, minute, second) = match (parts[..].as_ref(), afternoon) {
        (&[hour], Some(_)) => (hour, 0, 0),
        (&[hour, minute], _) => (hour, minute, 0),
        (&[hour, minute, second], _) => (hour, minute, second),
        _ => return None,
    };
    let hour = match afternoon {
        None => hour,
        Some(_) if !(1..=12).contains(&hour) => return None,
        Some(false) => hour % 12,
        Some(true) => hour % 12 + 12,
    };
    TimeOfDay::new(hour, minute, second, 0).ok()
}

/// `YYYY-MM-DD`, `MM/DD[/YY]`, `MM.DD[.YY]`, `MMDD[YY]`. A day without a year is the next such.
fn calendar_day(text: &str, now: &Zoned) -> Option<Date> {
    let number = |text: &str| text.parse::<i16>().ok().filter(|number| *number >= 0);
    let separated = |separator: char| -> Option<Vec<i16>> {
        let parts: Option<Vec<i16>> = text.split(separator).map(number).collect();
        parts.filter(|parts| parts.len() > 1)
    };
    if let Some([year, month, day]) = separated('-').as_deref() {
        return Date::new(*year, i8::try_from(*month).ok()?, i8::try_from(*day).ok()?).ok();
    }
    let digits = text.chars().all(|c| c.is_ascii_digit());
    let together = (digits && [4, 6].contains(&text.len())).then(|| {
        let pairs = (0..text.len()).step_by(2).map(|at| number(&text[at..at + 2]));
        pairs.collect::<Option<Vec<i16>>>()
    });
    let parts = together.flatten().or(separated('/')).or(separated('.'))?;
    let (month, day, year) = match parts[..] {
        [month, day] => (month, day, None),
        [month, day, year] => (month, day, Some(if year < 100 { 2_000 + year } else { year })),
        _ => return None,
    };
    let (month, day) = (i8::try_from(month).ok()?, i8::try_from(day).ok()?);
    match year {
        Some(year) => Date::new(year, month, day).ok(),
        None => {
            let this = Date::new(now.year(), month, day).ok()?;
            if this >= now.date() { Some(this) } else { this.checked_add(1.year()).ok() }
        }
    }
}

#[cfg(test)]
mod tests {
    use jiff::civil::date;
    use jiff::tz::TimeZone;

    use super::*;

    /// A Wednesday, 07:30 two hours east of Greenwich.
    fn now() -> Zoned {
        let zone = TimeZone::fixed(jiff::tz::offset(2));
        date(2026, 11, 25).at(7, 30, 0, 0).to_zoned(zone).expect("it exists")
    }

    #[track_caller]
    fn check(text: &str, expected: &str) {
        let found = begin(text, &now()).map(|at| {
            let instant = Timestamp::from_millisecond(at.0 as i64).expect("it is in range");
            instant.to_zoned(now().time_zone().clone()).datetime().to_string()
        });
        assert_eq!(found.as_deref(), Some(expected), "{text}");
    }

    #[test]
    fn times_are_those_of_sbatch() {
        check("18:00", "2026-11-25T18:00:00");
        check("06:00", "2026-11-26T06:00:00");
        check("6:15:30 PM", "2026-11-25T18:15:30");
        check("12am", "2026-11-26T00:00:00");
        check("midnight", "2026-11-26T00:00:00");
        check("noon", "2026-11-25T12:00:00");
        check("teatime", "2026-11-25T16:00:00");
        check("tomorrow", "2026-11-26T00:00:00");
        check("now", "2026-11-25T07:30:00");
        check("now+60", "2026-11-25T07:31:00");
        check("now+2hours", "2026-11-25T09:30:00");
        check("now + 3 days", "2026-11-28T07:30:00");
        check("now+1h30m", "2026-11-25T09:00:00");
        check("2026-12-24", "2026-12-24T00:00:00");
        check("2026-12-24T18:00", "2026-12-24T18:00:00");
        check("12/24", "2026-12-24T00:00:00");
        check("0224", "2027-02-24T00:00:00");
        check("122427", "2027-12-24T00:00:00");
        check("2026-12-24T18:00:00Z", "2026-12-24T20:00:00");
    }

    #[test]
    fn what_cannot_be_meant_is_refused() {
        for text in ["", "soon", "25:00", "13pm", "now-1h", "now+1fortnight", "2026-13-01", "18"] {
            assert_eq!(begin(text, &now()), None, "{text}");
        }
        assert_eq!(begin("1970-01-01", &now()), None, "before the epoch");
    }
}
