/* Draws steps of pipelines: three lanes per stage, receive on top, compute in the middle, send below. */
#include "report/page.h"

static const double ddp__stages_left = 96, ddp__stages_width = 1080, ddp__stages_lane = 18,
                    ddp__stages_thin = 5;
static const double ddp__stages_row = 34; /* three lanes and a margin */

static const char *ddp__stages_colour(const ddp_pipeline_slot *s)
{
    if (s->boundary >= 0) return s->gradient ? "#e8a33d" : "#8fb4e3";
    if (s->task.kind == DDP_TASK_FORWARD) return "#4f81c7";
    return s->task.kind == DDP_TASK_WEIGHT_GRADIENT ? "#5fae6e" : "#d9822b";
}

const char *ddp__slot_text(const ddp_pipeline_slot *s)
{
    static const char *const what[] = {"forward", "backward", "input gradients", "weight gradients"};

    if (s->boundary < 0) return what[s->task.kind];
    if (s->task.kind == DDP_TASK_SEND) return s->gradient ? "sends a gradient" : "sends activations";
    return s->gradient ? "receives a gradient" : "receives activations";
}

static void ddp__stages_time(ddp__text *t, double seconds)
{
    if (seconds < 1e-3)
        ddp__add_page(t, "^1 us", seconds * 1e6);
    else if (seconds < 1)
        ddp__add_page(t, "^2 ms", seconds * 1e3);
    else
        ddp__add_page(t, "^2 s", seconds);
}

static void ddp__stages_slot(ddp__text *t, const ddp_report_pipeline *p, const ddp_pipeline_slot *s,
                             double scale, double top)
{
    const double begin = s->begin_s - p->begin_s, x = ddp__stages_left + begin * scale,
                 w = (s->end_s - s->begin_s) * scale;
    const double y = top + s->stage * ddp__stages_row +
                     (s->boundary < 0                 ? ddp__stages_thin
                      : s->task.kind == DDP_TASK_SEND ? ddp__stages_thin + ddp__stages_lane
                                                      : 0);

    if (!(w > 0) || s->stage < 0 || s->stage >= p->stages) return;
    ddp__add_page(t,
                  "<rect x=\"^2\" y=\"^1\" width=\"^2\" height=\"^1\" fill=\"%s\"%s><title>stage %d %s, "
                  "micro-batch %d, ",
                  x, y, w < 0.4 ? 0.4 : w, s->boundary < 0 ? ddp__stages_lane : ddp__stages_thin,
                  ddp__stages_colour(s), w > 3 ? " stroke=\"#fff\" stroke-width=\"0.7\"" : "", s->stage,
                  ddp__slot_text(s), s->task.micro_batch);
    ddp__stages_time(t, s->end_s - s->begin_s);
    ddp__add_page(t, " from ");
    ddp__stages_time(t, begin);
    ddp__add_page(t, "</title></rect>\n");
    if (s->boundary < 0 && w >= 14)
        ddp__add_page(t, "<text x=\"^1\" y=\"^1\" class=\"in\">%d</text>\n", x + w / 2, y + 13,
                      s->task.micro_batch);
}

/* Draws the time below the stages. scale: drawing units per second. */
static void ddp__stages_axis(ddp__text *t, double longest, double scale, double y)
{
    const double unit = longest < 1e-3 ? 1e6 : longest < 1 ? 1e3 : 1;
    int decimals;
    const double step = ddp__tick_step(longest * unit, 12, &decimals);

    for (double v = 0; longest > 0 && v * step <= longest * unit * (1 + 1e-9); v += 1) {
        const double x = ddp__stages_left + v * step / unit * scale;
        ddp__add_page(t, "<path stroke=\"#888\" d=\"M^1 ^1v5\"/><text x=\"^1\" y=\"^1\" class=\"mid small\">",
                      x, y, x, y + 17);
        ddp__add_page(t, "^*%s</text>\n", decimals, v * step,
                      v > 0            ? ""
                      : longest < 1e-3 ? " us"
                      : longest < 1    ? " ms"
                                       : " s");
    }
}

void ddp__svg_stages(ddp__text *t, const char *space, const ddp_report_pipeline *p, int count)
{
    double longest = 0, height = 54, top = 24, scale;

    for (int i = 0; i < count; i++) {
        longest = fmax(longest, p[i].step_s);
        height += p[i].stages * ddp__stages_row + 34;
    }
    scale = (ddp__stages_width - ddp__stages_left - 20) / (longest > 0 ? longest : 1);
    ddp__add_page(
        t,
        "<svg%s class=\"stages\" role=\"img\" width=\"^0\" height=\"^0\" "
        "viewBox=\"0 0 ^0 ^0\" font-family=\"sans-serif\" font-size=\"12\" fill=\"#222\">\n"
        "<style>.stages text{fill:#222}.stages .small{fill:#555;font-size:11px}.stages "
        ".end{text-anchor:end}.stages .mid{text-anchor:middle}"
        ".stages .in{fill:#fff;font-size:10px;text-anchor:middle;pointer-events:none}</style>\n"
        "<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n<text x=\"12\" y=\"16\" class=\"small\">"
        "blue: forward; orange: backward, or its input gradients; green: weight gradients; numbered by "
        "micro-batch. Thin: receiving above, sending below.</text>\n",
        space, ddp__stages_width, height, ddp__stages_width, height);
    for (int i = 0; i < count; i++) {
        ddp__add_page(t, "<text x=\"12\" y=\"^1\"><tspan font-weight=\"bold\">$</tspan>: ", top + 14,
                      p[i].name);
        ddp__stages_time(t, p[i].step_s);
        ddp__add_page(t, ", bubble ^1 %%</text>\n", p[i].bubble_pct);
        top += 22;
        for (int k = 0; k < p[i].stages; k++)
            ddp__add_page(t, "<text x=\"^0\" y=\"^1\" class=\"end small\">stage %d</text>\n",
                          ddp__stages_left - 8, top + k * ddp__stages_row + ddp__stages_thin + 13, k);
        for (int k = 0; k < p[i].slots; k++) ddp__stages_slot(t, &p[i], &p[i].slot[k], scale, top);
        top += p[i].stages * ddp__stages_row + 12;
    }
    ddp__stages_axis(t, longest, scale, top);
    ddp__add_page(t, "</svg>\n");
}

ddp_status ddp_report_pipelines(const ddp_report_pipeline *p, int count, FILE *out, ddp_error *err)
{
    ddp__text t = DDP__ZEROS;

    ddp__svg_stages(&t, " xmlns=\"http://www.w3.org/2000/svg\"", p, count);
    return ddp__text_print(&t, out, "picture of the pipelines", err);
}
