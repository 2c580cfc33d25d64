//! `het top`: devices and live jobs of a server on one screen, and keys to change jobs.

use std::io::{IsTerminal, stdout};
use std::time::{Duration, Instant};

use het_wire::api::{DeviceList, DeviceRow, DeviceState, JobList, JobRow, ServerInfo};
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Gauge, Paragraph, Row, Table, TableState};
use ratatui::{DefaultTerminal, Frame};
use serde_json::Value;

use crate::client::{Client, client, client_again};
use crate::fail::{Fail, code};

/// How often the server is asked.
const ASK_EVERY: Duration = Duration::from_secs(1);
/// Most lines that devices take.
const DEVICES_MAX: u16 = 16;
const BAR_WIDTH: u16 = 30;

/// What was heard last.
#[derive(Debug)]
struct Heard {
    server: ServerInfo,
    devices: Vec<DeviceRow>,
    jobs: Vec<JobRow>,
}

#[derive(Debug)]
struct Screen {
    heard: Heard,
    selected: TableState,
    /// The last line: what a key did, or what is to be confirmed.
    said: String,
    /// A job that `y` cancels.
    to_cancel: Option<u64>,
}

/// What a key asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wish {
    Nothing,
    Leave,
    Change(u64, &'static str),
}

pub fn top() -> Result<u8, Fail> {
    if !stdout().is_terminal() {
        return Err(Fail::new(code::USAGE, "`het top` needs a terminal")
            .hint("`het ps -o json` is for programs"));
    }
    let mut client = client()?;
    let heard = ask(&mut client)?;
    let mut screen = Screen::new(heard);
    let mut terminal = ratatui::init();
    let ended = live(&mut terminal, &mut client, &mut screen);
    ratatui::restore();
    ended.map(|()| code::OK)
}

fn live(
    terminal: &mut DefaultTerminal,
    client: &mut Client,
    screen: &mut Screen,
) -> Result<(), Fail> {
    let broken = |error| Fail::new(code::FAILED, format!("the terminal cannot be used: {error}"));
    loop {
        terminal.draw(|frame| screen.draw(frame)).map_err(broken)?;
        let until = Instant::now() + ASK_EVERY;
        while event::poll(until.saturating_duration_since(Instant::now())).map_err(broken)? {
            if let Event::Key(key) = event::read().map_err(broken)?
                && key.kind == KeyEventKind::Press
            {
                let quits = key.modifiers.contains(KeyModifiers::CONTROL);
                match screen.key(if quits { KeyCode::Esc } else { key.code }) {
                    Wish::Leave => return Ok(()),
                    Wish::Nothing => {}
                    Wish::Change(id, operation) => screen.said = change(client, id, operation),
                }
            }
            terminal.draw(|frame| screen.draw(frame)).map_err(broken)?;
        }
        let heard = ask(client).or_else(|_| {
            // The server may have been started again.
            *client = client_again()?;
            ask(client)
        });
        screen.hear(heard?);
    }
}

fn ask(client: &mut Client) -> Result<Heard, Fail> {
    let server = client.get("/api/v1/server")?;
    let devices: DeviceList = client.get("/api/v1/devices")?;
    let jobs: JobList = client.get("/api/v1/jobs")?;
    Ok(Heard { server, devices: devices.items, jobs: jobs.items })
}

fn change(client: &mut Client, id: u64, operation: &str) -> String {
    match client.post::<JobRow>(&format!("/api/v1/jobs/{id}/{operation}"), &Value::Null) {
        Ok(row) => format!("job {id} is {}", row.state),
        Err(fail) => fail.text(),
    }
}

impl Screen {
    fn new(heard: Heard) -> Self {
        let mut screen = Self {
            heard: Heard { jobs: Vec::new(), ..heard },
            selected: TableState::default(),
            said: String::new(),
            to_cancel: None,
        };
        screen.select(0);
        screen
    }

    /// Takes in news; the selection stays with its job.
    fn hear(&mut self, heard: Heard) {
        let id = self.job().map(|job| job.id);
        self.heard = heard;
        let at = self.heard.jobs.iter().position(|job| Some(job.id) == id);
        self.select(at.unwrap_or_else(|| self.selected.selected().unwrap_or(0)));
    }

    fn select(&mut self, index: usize) {
        let last = self.heard.jobs.len().checked_sub(1);
        self.selected.select(last.map(|last| index.min(last)));
    }

    fn job(&self) -> Option<&JobRow> {
        self.heard.jobs.get(self.selected.selected()?)
    }

    fn key(&mut self, key: KeyCode) -> Wish {
        let to_cancel = self.to_cancel.take();
        self.said.clear();
        let at = self.selected.selected().unwrap_or(0);
        let change = |operation| move |job: &JobRow| Wish::Change(job.id, operation);
        match key {
            KeyCode::Char('q') | KeyCode::Esc => return Wish::Leave,
            KeyCode::Down | KeyCode::Char('j') => self.select(at + 1),
            KeyCode::Up | KeyCode::Char('k') => self.select(at.saturating_sub(1)),
            KeyCode::Char('h') => return self.job().map_or(Wish::Nothing, change("hold")),
            KeyCode::Char('r') => return self.job().map_or(Wish::Nothing, change("release")),
            KeyCode::Char('c') => {
                self.to_cancel = self.job().map(|job| job.id);
                if let Some(id) = self.to_cancel {
                    self.said = format!("cancel job {id}? y: yes, any other key: no");
                }
            }
            KeyCode::Char('y') => {
                return to_cancel.map_or(Wish::Nothing, |id| Wish::Change(id, "cancel"));
            }
            _ => {}
        }
        Wish::Nothing
    }

    fn draw(&mut self, frame: &mut Frame<'_>) {
        let devices = (self.heard.devices.len() as u16).min(DEVICES_MAX);
        let [head, bars, jobs, foot] = Layout::vertical([
            Constraint::Length(2),
            Constraint::Length(devices + 1),
            Constraint::Min(3),
            Constraint::Length(1),
        ])
        .areas(frame.area());
        self.draw_head(frame, head);
        self.draw_devices(frame, bars);
        self.draw_jobs(frame, jobs);
        let keys = "q quit · ↑↓ select · h hold · r release · c cancel";
        let said = if self.said.is_empty() { keys } else { &self.said };
        frame.render_widget(Line::styled(said, Style::new().fg(Color::DarkGray)), foot);
    }

    fn draw_head(&self, frame: &mut Frame<'_>, area: Rect) {
        let server = &self.heard.server;
        let count = |state: &str| self.heard.jobs.iter().filter(|job| job.state == state).count();
        let line = Line::from(vec![
            Span::styled("het", Style::new().add_modifier(Modifier::BOLD)),
            Span::raw(format!(
                " {} · {} · {} running · {} of {} jobs wait · {} events",
                server.version,
                server.policy,
                count("running"),
                count("queued") + count("held"),
                server.jobs_live,
                server.events,
            )),
        ]);
        frame.render_widget(Paragraph::new(line), area);
    }

    fn draw_devices(&self, frame: &mut Frame<'_>, area: Rect) {
        for (line, device) in (area.y..area.bottom().saturating_sub(1)).zip(&self.heard.devices) {
            let row = Rect { y: line, height: 1, ..area };
            let widths = [Constraint::Length(BAR_WIDTH), Constraint::Min(0)];
            let [bar, name] = Layout::horizontal(widths).spacing(1).areas(row);
            let part = f64::from(device.held) / f64::from(device.units.max(1));
            let (color, label) = match device.state {
                DeviceState::Up => (Color::Green, format!("{}/{}", device.held, device.units)),
                DeviceState::Failed | DeviceState::Gone => {
                    (Color::Red, device.state.word().to_owned())
                }
                out => (Color::Yellow, out.word().to_owned()),
            };
            let gauge = Gauge::default().ratio(part.clamp(0.0, 1.0)).label(label);
            let style = Style::new().fg(color).bg(Color::DarkGray);
            frame.render_widget(gauge.gauge_style(style), bar);
            frame.render_widget(Line::raw(format!("{} · {}", device.name, device.class)), name);
        }
    }

    fn draw_jobs(&mut self, frame: &mut Frame<'_>, area: Rect) {
        let rows = self.heard.jobs.iter().map(|job| {
            Row::new([
                Cell::new(job.id.to_string()),
                Cell::new(job.name.as_str()),
                Cell::new(Span::styled(job.state.as_str(), color(&job.state))),
                Cell::new(job.priority.as_str()),
                Cell::new(done(job)),
                Cell::new(match &job.reason {
                    Some(reason) if job.devices.is_empty() => reason.clone(),
                    _ => job.devices.join(", "),
                }),
            ])
        });
        let widths = [
            Constraint::Length(6),
            Constraint::Max(24),
            Constraint::Length(13),
            Constraint::Length(8),
            Constraint::Length(14),
            Constraint::Min(10),
        ];
        let titles = ["ID", "NAME", "STATE", "PRIORITY", "STEP", "DEVICES OR REASON"];
        let table = Table::new(rows, widths)
            .header(Row::new(titles).style(Style::new().add_modifier(Modifier::BOLD)))
            .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
        frame.render_stateful_widget(table, area, &mut self.selected);
    }
}

fn color(state: &str) -> Style {
    Style::new().fg(match state {
        "running" => Color::Green,
        "queued" | "held" => Color::Yellow,
        _ => Color::Cyan,
    })
}

/// `STEP`, or `STEP/TOTAL PERCENT`.
fn done(job: &JobRow) -> String {
    match (job.step, job.total) {
        (Some(step), Some(total @ 1..)) => {
            format!("{step}/{total} {} %", u128::from(step) * 100 / u128::from(total))
        }
        (Some(step), _) => step.to_string(),
        (None, _) => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use serde_json::json;

    use super::*;

    fn job(id: u64, state: &str, step: Option<u64>) -> JobRow {
        let devices = if state == "running" { vec!["box/cuda0:1"] } else { vec![] };
        let reason = (state == "queued").then_some("fewer than 1 of `cuda` are free now");
        serde_json::from_value(json!({
            "id": id, "name": "tune", "tenant": "lab", "priority": "high", "state": state,
            "stage": "train", "devices": devices, "step": step, "total": 400,
            "submitted_at": "2026-11-21T00:00:00Z", "preemptions": 0, "reason": reason,
        }))
        .expect("it is a row")
    }

    fn screen(jobs: Vec<JobRow>) -> Screen {
        let server = json!({
            "apiVersion": "v", "kind": "Server", "version": "0.1.0", "pid": 1, "events": 77,
            "policy": "adaptive", "started_at": "2026-11-21T00:00:00Z", "jobs_live": jobs.len(),
        });
        let device = |name: &str, held, units, state| DeviceRow {
            name: name.to_owned(),
            class: "h100".to_owned(),
            kind: "gpu".to_owned(),
            units,
            held,
            state,
            pace_pct: None,
            slow_cause: None,
            occupant: None,
            busy_pct: None,
            memory_used_bytes: None,
            clock_pct: None,
        };
        let devices = vec![
            device("box/cpu0", 4, 16, DeviceState::Up),
            device("box/cuda0", 1, 1, DeviceState::Failed),
        ];
        let server = serde_json::from_value(server).expect("it is a server");
        let mut screen = Screen::new(Heard { server, devices: Vec::new(), jobs: Vec::new() });
        let server = screen.heard.server.clone();
        screen.hear(Heard { server, devices, jobs });
        screen
    }

    #[test]
    fn a_screen_shows_devices_jobs_and_why_they_wait() {
        let mut screen = screen(vec![job(7, "running", Some(100)), job(8, "queued", None)]);
        let backend = TestBackend::new(110, 9);
        let mut terminal = Terminal::new(backend).expect("nothing can fail");
        terminal.draw(|frame| screen.draw(frame)).expect("nothing can fail");
        insta::assert_snapshot!(terminal.backend());
    }

    #[test]
    fn keys_act_on_the_selected_job_and_cancelling_is_confirmed() {
        let mut screen = screen(vec![job(7, "running", None), job(8, "queued", None)]);
        assert_eq!(screen.key(KeyCode::Char('h')), Wish::Change(7, "hold"));
        assert_eq!(screen.key(KeyCode::Down), Wish::Nothing);
        assert_eq!(screen.key(KeyCode::Char('c')), Wish::Nothing);
        assert_eq!(screen.key(KeyCode::Char('n')), Wish::Nothing);
        assert_eq!(screen.key(KeyCode::Char('y')), Wish::Nothing, "no was said");
        screen.key(KeyCode::Char('c'));
        assert_eq!(screen.key(KeyCode::Char('y')), Wish::Change(8, "cancel"));
        assert_eq!(screen.key(KeyCode::Char('q')), Wish::Leave);
    }

    #[test]
    fn the_selection_stays_with_its_job() {
        let mut screen = screen(vec![job(7, "running", None), job(8, "queued", None)]);
        screen.key(KeyCode::Down);
        let heard = |jobs| Heard { server: screen_server(), devices: Vec::new(), jobs };
        screen.hear(heard(vec![job(8, "running", None), job(9, "queued", None)]));
        assert_eq!(screen.job().map(|job| job.id), Some(8));
        screen.hear(heard(Vec::new()));
        assert_eq!(screen.key(KeyCode::Char('c')), Wish::Nothing);
    }

    fn screen_server() -> ServerInfo {
        screen(Vec::new()).heard.server
    }
}
