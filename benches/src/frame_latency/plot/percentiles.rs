//! Percentile curves of frame times.

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::{
    Area, Drawn, GRID, Group, INK, Look, Picture, chart, color, label, legend, limit, round_up,
};
use crate::args::Mode;

struct Curve {
    mode: Mode,
    points: Vec<(f64, f64)>,
}

impl Curve {
    fn longest(&self) -> f64 {
        self.points.last().map_or(0.0, |point| point.1)
    }
}

/// Height of the plot, in frame periods.
const PERIODS_SHOWN: f64 = 3.0;

pub struct Percentiles {
    title: String,
    period_ms: f64,
    curves: Vec<Curve>,
}

impl Percentiles {
    pub fn of(group: &Group<'_>) -> Self {
        let curves = group.outcomes.iter().map(|outcome| Curve {
            mode: outcome.cell.mode,
            points: outcome.times(|frame| frame.work).curve(),
        });
        let period = group.outcomes.first().map(|outcome| outcome.cell.period());
        Self {
            title: format!("Work of a frame: {}", group.title()),
            period_ms: period.unwrap_or_default().as_secs_f64() * 1e3,
            curves: curves.collect(),
        }
    }
}

/// Formats nines as a percentage: `3` is 99.9 %.
fn percent(nines: &f64) -> String {
    if (nines - nines.round()).abs() > 1e-6 {
        return String::new();
    }
    match nines.round() as i32 {
        0 => "0".into(),
        1 => "90".into(),
        2 => "99".into(),
        n => format!("99.{}", "9".repeat((n - 2) as usize)),
    }
}

impl Picture for Percentiles {
    fn size(&self) -> (u32, u32) {
        (1_100, 640)
    }

    fn draw<DB: DrawingBackend>(&self, area: &Area<'_, DB>, look: Look) -> Drawn<DB> {
        area.fill(&WHITE)?;
        let points = || self.curves.iter().flat_map(|curve| &curve.points);
        let max_x = points().map(|point| point.0).fold(1.0, f64::max);
        let max_y = points().map(|point| point.1).fold(self.period_ms, f64::max);
        // A frame beyond three periods is lost anyway; a larger range would flatten the relevant
        // curves.
        let max_y = round_up(max_y.min(PERIODS_SHOWN * self.period_ms) * 1.02);
        let mut chart = chart(area, &self.title, (max_x, max_y), look)?;
        chart
            .configure_mesh()
            .light_line_style(WHITE)
            .bold_line_style(GRID)
            .axis_style(INK)
            .x_labels(max_x.floor() as usize + 1)
            .x_label_formatter(&percent)
            .y_labels(9)
            .y_label_formatter(&|ms: &f64| ms.to_string())
            .x_desc("frames that take no longer, in percent")
            // No curve crosses the label here.
            .y_desc(format!("milliseconds (dashed: the period of {:.2})", self.period_ms))
            .label_style(look.text(18))
            .axis_desc_style(look.text(18))
            .draw()?;
        limit(&mut chart, self.period_ms, 1, look)?;
        for curve in &self.curves {
            let style = color(curve.mode).stroke_width(look.stroke(3));
            chart
                .draw_series(LineSeries::new(curve.points.iter().copied(), style))?
                .label(label(curve.mode))
                .legend(move |(x, y)| PathElement::new([(x, y), (x + look.px(26), y)], style));
        }
        let beyond = self.curves.iter().filter(|curve| curve.longest() > max_y);
        for (line, curve) in (0..).zip(beyond) {
            let note = format!("{} up to {:.0} ms", label(curve.mode), curve.longest());
            let color = color(curve.mode);
            let style = look.text(16).color(&color).pos(Pos::new(HPos::Right, VPos::Top));
            let below = EmptyElement::at((max_x, max_y))
                + Text::new(note, look.at(-8, 10 + 22 * line), style);
            chart.draw_series([below])?;
        }
        legend(&mut chart, 34, look)
    }
}
