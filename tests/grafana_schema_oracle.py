#!/usr/bin/env python3
"""share/grafana/kvasir.json by Grafana's own schema: the types of @grafana/schema, which TypeScript checks. npm brings both at
the first run. Grafana 11.0, whose schema it is, writes dashboards of schemaVersion 39.

    grafana_schema_oracle.py
"""

import copy
import json
import re
import subprocess
import unittest

from needs import needs_programs, refused
from server_harness import ROOT, WAIT_S

DASHBOARD = json.loads((ROOT / "share/grafana/kvasir.json").read_text())
HOME = ROOT / "build/clients/grafana"
PACKAGES = {"@grafana/schema": "11.0.0", "typescript": "5.9.3"}
# The type of this dashboard: Grafana's types, with that of each panel's options and queries in place of `unknown`.
TYPES = """
import type { Dashboard, DataQuery, DataSourceRef, FieldConfig, GraphFieldConfig, Panel, RowPanel, VariableModel } from "@grafana/schema";
import type { Options } from "@grafana/schema/dist/esm/raw/composable/timeseries/panelcfg/x/TimeSeriesPanelCfg_types.gen";

// As JSON has it: a value of an enumeration is its text.
type Json<T> = T extends string ? `${T}` : T extends object ? { [K in keyof T]: Json<T[K]> } : T;

// What a panel asks of a source of Prometheus.
interface Query extends Omit<DataQuery, "datasource"> { expr: string; legendFormat: string; datasource: Required<DataSourceRef> }
interface Fields extends Omit<FieldConfig, "custom"> { custom: GraphFieldConfig }
interface TimeSeries extends Omit<Panel, "type" | "options" | "targets" | "fieldConfig"> {
  id: number; type: "timeseries"; title: string; description: string; options: Options; targets: Query[];
  fieldConfig: { defaults: Fields; overrides: [] };
}
// Grafana shows a variable's `definition` in its list, and writes it; its schema does not have it.
interface Variable extends VariableModel { definition?: string }
interface Kvasir extends Omit<Dashboard, "panels" | "templating"> {
  panels: (RowPanel | TimeSeries)[];
  templating: { list: Variable[] };
}
export type Checked = Json<Kvasir>;
"""
SETTINGS = {"compilerOptions": {"strict": True, "noEmit": True, "module": "nodenext", "target": "es2022", "types": [],
                                "skipLibCheck": False}, "include": ["*.ts"]}


def changed(change):
    dashboard = copy.deepcopy(DASHBOARD)
    change(dashboard, next(panel for panel in dashboard["panels"] if panel["type"] == "timeseries"))
    return dashboard


# What is wrong, and a word of what TypeScript says of it.
WRONG = {
    "unknown_key": (changed(lambda d, p: d.update(scheme=39)), "scheme"),
    "unknown_key_of_a_panel": (changed(lambda d, p: p.update(titel="x")), "titel"),
    "unknown_option": (changed(lambda d, p: p["options"]["legend"].update(place="bottom")), "place"),
    "unknown_field": (changed(lambda d, p: p["fieldConfig"]["defaults"]["custom"].update(lineWith=2)), "lineWith"),
    "unknown_key_of_a_query": (changed(lambda d, p: p["targets"][0].update(exp="up")), "exp"),
    "no_such_value": (changed(lambda d, p: p["options"]["legend"].update(displayMode="lists")), "lists"),
    "no_such_mode": (changed(lambda d, p: p["fieldConfig"]["defaults"]["custom"].update(showPoints="no")), "no"),
    "no_such_tooltip": (changed(lambda d, p: d.update(graphTooltip=7)), "7"),
    "wrong_type": (changed(lambda d, p: p["gridPos"].update(w="8")), "number"),
    "missing": (changed(lambda d, p: d.pop("schemaVersion")), "schemaVersion"),
    "missing_in_a_row": (changed(lambda d, p: d["panels"][0].pop("collapsed")), "collapsed"),
    "unknown_variable": (changed(lambda d, p: d["templating"]["list"][1].update(type="metric")), "metric"),
}


@needs_programs("npm", "node")
class GrafanasSchema(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        HOME.mkdir(parents=True, exist_ok=True)
        installed = HOME / "installed.json"
        if not installed.exists() or json.loads(installed.read_text()) != PACKAGES:
            done = subprocess.run(["npm", "install", "--prefix", HOME, "--no-audit", "--no-fund", "--silent", "--save-exact",
                                   *(f"{name}@{version}" for name, version in PACKAGES.items())],
                                  capture_output=True, text=True, timeout=WAIT_S)
            if done.returncode:
                refused(f"npm could not install {', '.join(PACKAGES)}: {done.stderr[-300:]}")
            installed.write_text(json.dumps(PACKAGES))
        (HOME / "tsconfig.json").write_text(json.dumps(SETTINGS))
        (HOME / "types.ts").write_text(TYPES)
        for old in HOME.glob("*_dashboard.ts"):
            old.unlink()
        for name, dashboard in (("right", DASHBOARD), *((name, wrong) for name, (wrong, _) in WRONG.items())):
            (HOME / f"{name}_dashboard.ts").write_text(
                f'import type {{ Checked }} from "./types.js";\nexport const dashboard: Checked = {json.dumps(dashboard, indent=1)};\n')
        done = subprocess.run([HOME / "node_modules/.bin/tsc", "-p", HOME, "--pretty", "false"], capture_output=True, text=True,
                              timeout=WAIT_S)
        cls.said = {}  # by file
        for line in done.stdout.splitlines():
            if found := re.match(r"(?:.*/)?(\w+)\.ts\(", line):
                cls.last = found[1]
            cls.said.setdefault(cls.last, []).append(line)

    def test_the_dashboard_has_what_the_schema_has(self):
        self.assertEqual(self.said.get("types", []), [])
        self.assertEqual(self.said.get("right_dashboard", []), [])

    def test_what_is_wrong_is_found(self):
        for name, (_, word) in WRONG.items():
            with self.subTest(name):
                self.assertIn(word, "\n".join(self.said.get(f"{name}_dashboard", [])))


if __name__ == "__main__":
    unittest.main()
