// Prints the table of settings as JSON, for scripts/settings_docs.py. Not installed.
#include "base/settings/settings_table.h"
#include "cli/text/text_out.h"

int main() {
  using namespace ckpt;
  auto all = nlohmann::ordered_json::array();
  for (const Setting& s : setting_table()) {
    SettingText accepted, standard;
    accepted_by(s, accepted);
    s.print(Settings{}, standard);
    nlohmann::ordered_json one;
    one["variable"] = s.variable;
    one["option"] = s.option == nullptr ? "" : s.option;
    one["value"] = s.value;
    one["meaning"] = s.meaning;
    one["accepts"] = accepted.text;
    one["default"] = standard.text;
    one["when_empty"] = s.when_empty == nullptr ? "" : s.when_empty;
    one["document"] = s.document == nullptr ? "" : s.document;
    one["by_run"] = (s.given & kByRun) != 0;
    one["by_now"] = (s.given & kByNow) != 0;
    one["by_readers"] = (s.given & kByReaders) != 0;
    all.push_back(one);
  }
  cli::print_json(all);
}
