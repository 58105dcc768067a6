"""The grammar of our figures. They are drawn by packages of an extra: without it, importing this room asks for it."""

from headwise.extras import require

require("report", "charts")
