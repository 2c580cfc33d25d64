//! The values of `#SBATCH` options.

use crate::quantity;

/// A message and what to write instead.
pub(super) type Refused = (String, String);

/// `afterok:41:42,afterany:43`, or with `?` where one is enough, in our words.
pub(super) fn dependency(value: &str) -> Result<String, Refused> {
    let separator = if value.contains('?') { "?" } else { "," };
    let items: Option<Vec<String>> = value.split(separator).map(of_kind).collect();
    items.map(|items| items.join(separator)).ok_or_else(|| {
        let hint = "write `afterok:41`, `afternotok:`, `afterany:`, `after:41+5`, `aftercorr:` or \
                    `singleton`, with `,` or `?` between them";
        (format!("`{value}` is no dependency for `--dependency`"), hint.to_owned())
    })
}

/// `KIND:JOB[+MINUTES][:JOB…]`; a job is `ID`, which stands for its whole array, or `ID_INDEX`.
fn of_kind(part: &str) -> Option<String> {
    if part == "singleton" {
        return Some(part.to_owned());
    }
    let (kind, jobs) = part.split_once(':')?;
    let condition = match kind {
        "after" => "start",
        "afterok" | "aftercorr" => "ok",
        "afternotok" => "fail",
        "afterany" => "any",
        _ => return None,
    };
    let item = |job: &str| {
        let (job, minutes) = match job.split_once('+') {
            Some((job, minutes)) => (job, Some(minutes.parse::<u32>().ok()?)),
            None => (job, None),
        };
        let (id, index) = job.split_once('_').unwrap_or((job, ""));
        let is_number = |text: &str| text.chars().all(|c| c.is_ascii_digit());
        let inside = if kind == "aftercorr" { "=" } else { index };
        let fits = !id.is_empty() && is_number(id) && is_number(index);
        let delay = minutes.map(|minutes| format!("+{minutes}m")).unwrap_or_default();
        fits.then(|| format!("{id}[{inside}]:{condition}{delay}"))
    };
    let items: Option<Vec<String>> = jobs.split(':').map(item).collect();
    Some(items?.join(","))
}

/// Models of `--constraint`, where one of several will do.
pub(super) fn models(value: &str) -> Result<Vec<String>, Refused> {
    match value.contains(['&', '*', '[', '(']) {
        true => {
            let hint = "name the model of the devices, such as `--gpus=a100:2`".to_owned();
            Err((format!("`{value}` describes nodes, and a constraint here is a model"), hint))
        }
        false => Ok(value.split(['|', ',']).map(str::to_lowercase).collect()),
    }
}

/// A file name with the patterns of sbatch(1) as our placeholders. `%x` stays for when the job's
/// name is known.
pub(super) fn pattern(key: &str, value: &str) -> Result<String, Refused> {
    let mut out = String::new();
    let mut letters = value.chars().peekable();
    while let Some(letter) = letters.next() {
        if letter != '%' {
            out.push(letter);
            continue;
        }
        let mut width = String::new();
        while let Some(digit) = letters.next_if(char::is_ascii_digit) {
            width.push(digit);
        }
        let width = if width.is_empty() { width } else { format!(":{width}") };
        match letters.next() {
            Some('%') => out.push('%'),
            Some('j' | 'J') => out.push_str(&format!("{{job{width}}}")),
            Some('A') => out.push_str(&format!("{{array{width}}}")),
            Some('a') => out.push_str(&format!("{{index{width}}}")),
            Some('N') => out.push_str("{node}"),
            Some('n' | 't') => out.push('0'),
            Some('s') => out.push_str("batch"),
            Some('u') => out.push_str("{user}"),
            Some('x') => out.push_str("%x"),
            other => {
                let other = other.map(String::from).unwrap_or_default();
                let hint = "there are `%j`, `%A`, `%a`, `%x`, `%N`, `%u` and `%%`".to_owned();
                return Err((format!("`%{other}` stands for nothing in `{key}`"), hint));
            }
        }
    }
    Ok(out)
}

/// Longest time that is meant: a hundred years.
const TIME_MAX_S: u64 = 100 * 366 * 86_400;

pub(super) fn count(key: &str, value: &str) -> Result<u32, Refused> {
    let wrong =
        || (format!("`{value}` is no count for `{key}`"), "write a whole number".to_owned());
    value.parse().map_err(|_| wrong())
}

/// `[TYPE:]COUNT`.
pub(super) fn gpus(key: &str, value: &str) -> Result<(String, u32), Refused> {
    if value.contains(',') {
        let hint = "give each its own stage in a job file".to_owned();
        return Err((format!("`{value}` asks for several sorts of devices"), hint));
    }
    let (word, number) = value.rsplit_once(':').unwrap_or(("gpu", value));
    Ok((word.to_lowercase(), count(key, number)?))
}

/// `gpu:2`, `gpu:h100:2`, `npu:8`, `gpu`; nothing for `none`.
pub(super) fn gres(value: &str) -> Result<Option<(String, u32)>, Refused> {
    if value.eq_ignore_ascii_case("none") {
        return Ok(None);
    }
    let mut found = None;
    for item in value.split(',') {
        let item = item.strip_prefix("gres/").or(item.strip_prefix("gres:")).unwrap_or(item);
        let parts: Vec<&str> = item.split(':').collect();
        let kind = parts[0].to_lowercase();
        if ["tmp", "shard", "mps", "license", "craynetwork"].contains(&kind.as_str()) {
            let hint = "ask for whole devices, such as `gpu:2`".to_owned();
            return Err((format!("`{item}` cannot be asked for here"), hint));
        }
        let (word, number) = match parts[..] {
            [_] => (kind, 1),
            [_, number] if number.chars().all(|c| c.is_ascii_digit()) => {
                (kind, count("--gres", number)?)
            }
            [_, model] => (model.to_lowercase(), 1),
            [_, model, number] => (model.to_lowercase(), count("--gres", number)?),
            _ => {
                let hint = "write `gpu:2` or `gpu:h100:2`".to_owned();
                return Err((format!("`{item}` is no resource for `--gres`"), hint));
            }
        };
        if found.replace((word, number)).is_some() {
            let hint = "give each its own stage in a job file".to_owned();
            return Err((format!("`{value}` asks for several sorts of devices"), hint));
        }
    }
    Ok(found)
}

/// Mebibytes where no unit is given, as Slurm has it; its units are binary.
pub(super) fn mebibytes(key: &str, value: &str) -> Result<u64, Refused> {
    let digits = value.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match value[digits.len()..].to_uppercase().as_str() {
        "" | "M" | "MB" => "MiB",
        "K" | "KB" => "KiB",
        "G" | "GB" => "GiB",
        "T" | "TB" => "TiB",
        _ => "?",
    };
    let bytes = quantity::size(&format!("{digits}{unit}"));
    let wrong = || (format!("`{value}` is no size for `{key}`"), "write `64G`".to_owned());
    bytes.map(|bytes| bytes.0 >> 20).ok_or_else(wrong)
}

/// `MINUTES`, `MINUTES:SECONDS`, `HOURS:MINUTES:SECONDS`, `DAYS-HOURS[:MINUTES[:SECONDS]]`.
/// No limit for `0`, `UNLIMITED` and `INFINITE`.
pub(super) fn time(value: &str) -> Result<Option<String>, Refused> {
    if ["0", "UNLIMITED", "INFINITE"].contains(&value.to_uppercase().as_str()) {
        return Ok(None);
    }
    let read = || -> Option<u64> {
        let (days, rest) = match value.split_once('-') {
            Some((days, rest)) => (Some(days.parse::<u64>().ok()?), rest),
            None => (None, value),
        };
        let parts: Option<Vec<u64>> = rest.split(':').map(|part| part.parse().ok()).collect();
        let [hours, minutes, seconds] = match (days, &parts?[..]) {
            (None, &[minutes]) => [0, minutes, 0],
            (None, &[minutes, seconds]) => [0, minutes, seconds],
            (Some(_), &[hours]) => [hours, 0, 0],
            (Some(_), &[hours, minutes]) => [hours, minutes, 0],
            (_, &[hours, minutes, seconds]) => [hours, minutes, seconds],
            _ => return None,
        };
        let parts = [(days.unwrap_or(0), 86_400), (hours, 3_600), (minutes, 60), (seconds, 1)];
        parts.into_iter().try_fold(0_u64, |sum, (count, unit)| {
            sum.checked_add(count.checked_mul(unit)?).filter(|sum| *sum <= TIME_MAX_S)
        })
    };
    match read() {
        Some(seconds @ 1..) => Ok(Some(format!("{seconds}s"))),
        _ => {
            let hint = "write `90`, `1:30:00` or `2-12`".to_owned();
            Err((format!("`{value}` is no time for `--time`"), hint))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some(text: &str) -> Option<String> {
        Some(text.to_owned())
    }

    #[test]
    fn times_are_slurms() {
        let read = |text: &str| time(text).ok().flatten();
        assert_eq!(read("90"), some("5400s"));
        assert_eq!(read("1:30"), some("90s"));
        assert_eq!(read("1:00:30"), some("3630s"));
        assert_eq!(read("2-12:30"), some("217800s"));
        for endless in ["UNLIMITED", "infinite", "0"] {
            assert_eq!(time(endless), Ok(None));
        }
        for wrong in ["soon", "1:2:3:4", "999999999999999999-0", "18446744073709551615", ""] {
            assert!(time(wrong).is_err(), "{wrong}");
        }
    }
}
