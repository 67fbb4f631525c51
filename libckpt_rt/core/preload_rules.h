// The rules for code of this library, base/preload_rules.h. Include it last.
#pragma once

#include "base/preload_rules.h"
