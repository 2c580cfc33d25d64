//! `het size`: how a large job is cut, what it needs and how long it takes; and how near such
//! estimates come to what was measured.

mod asked;
mod job_file;
mod launch;
mod pools;
mod shown;
mod validate;
mod words;

use het_parallel::{Problem, Request, Rule, fit, search};

use crate::args::{SizeArgs, SizeCommand};
use crate::fail::{Fail, code};

pub use asked::model;
pub use pools::usual;

pub fn size(args: &SizeArgs) -> Result<u8, Fail> {
    if let Some(SizeCommand::Validate(args)) = &args.command {
        return validate::validate(args);
    }
    asked::consistent(args)?;
    let request = asked::request(args)?;
    if let Some(rule) = asked::rule(args, &request)? {
        return by_rule(args, &request, &rule);
    }
    if asked::tries_several_ways(args) {
        let fits = fit(&request).map_err(|problem| unanswerable(&problem))?;
        return shown::fits(&request, &fits, shown::form(args)?);
    }
    let ranking = search(&request).map_err(|problem| unanswerable(&problem))?;
    match args.pick {
        Some(number) => job_file::write(args, &request, &ranking, number),
        None => shown::ranking(&request, &ranking, shown::form(args)?),
    }
}

/// The rule of thumb with a given utilisation, and why our own estimate says something else.
fn by_rule(args: &SizeArgs, request: &Request, rule: &Rule) -> Result<u8, Fail> {
    let plan = search(request).ok().and_then(|ranking| ranking.candidates.into_iter().next());
    let against = plan.as_ref().and_then(|plan| rule.against(&request.model, plan));
    shown::rule(request, rule, against.as_ref(), shown::form(args)?)
}

fn unanswerable(problem: &Problem) -> Fail {
    let text = problem.to_string();
    match text.split_once("; hint: ") {
        Some((message, hint)) => Fail::new(code::USAGE, message).hint(hint),
        None => Fail::new(code::USAGE, text),
    }
}
