PRAGMA application_id = 1246713164;
BEGIN TRANSACTION;
CREATE TABLE budget_scopes (
	"key" VARCHAR NOT NULL, 
	since_s DOUBLE NOT NULL, 
	seen_s DOUBLE NOT NULL, 
	PRIMARY KEY ("key")
);
CREATE TABLE budget_slots (
	"key" VARCHAR NOT NULL, 
	start_s DOUBLE NOT NULL, 
	cpu_j DOUBLE NOT NULL, 
	mem_j DOUBLE NOT NULL, 
	gpu_j DOUBLE NOT NULL, 
	energy_j DOUBLE NOT NULL, 
	measured_j DOUBLE NOT NULL, 
	assumed_j DOUBLE NOT NULL, 
	emissions_g DOUBLE NOT NULL, 
	energy_without_intensity_j DOUBLE NOT NULL, 
	cost DOUBLE NOT NULL, 
	energy_without_price_j DOUBLE NOT NULL, 
	marginal_g DOUBLE NOT NULL, 
	energy_without_marginal_j DOUBLE NOT NULL, 
	PRIMARY KEY ("key", start_s)
)
 WITHOUT ROWID

;
CREATE TABLE crossings (
	scope VARCHAR NOT NULL, 
	since_s DOUBLE NOT NULL, 
	limit_j DOUBLE NOT NULL, 
	action VARCHAR NOT NULL, 
	used_j DOUBLE NOT NULL, 
	time_s DOUBLE NOT NULL, 
	acted BOOLEAN NOT NULL, 
	PRIMARY KEY (scope, since_s, limit_j, action)
);
CREATE TABLE entries (
	number INTEGER NOT NULL, 
	kind VARCHAR NOT NULL, 
	recorded_s DOUBLE NOT NULL, 
	from_s DOUBLE NOT NULL, 
	until_s DOUBLE NOT NULL, 
	concerns_s DOUBLE NOT NULL, 
	namespace VARCHAR NOT NULL, 
	owner_kind VARCHAR NOT NULL, 
	owner_name VARCHAR NOT NULL, 
	zone VARCHAR NOT NULL, 
	note VARCHAR NOT NULL, 
	cpu_j DOUBLE NOT NULL, 
	mem_j DOUBLE NOT NULL, 
	gpu_j DOUBLE NOT NULL, 
	energy_j DOUBLE NOT NULL, 
	measured_j DOUBLE NOT NULL, 
	assumed_j DOUBLE NOT NULL, 
	emissions_g DOUBLE NOT NULL, 
	energy_without_intensity_j DOUBLE NOT NULL, 
	cost DOUBLE NOT NULL, 
	energy_without_price_j DOUBLE NOT NULL, 
	marginal_g DOUBLE NOT NULL, 
	energy_without_marginal_j DOUBLE NOT NULL, 
	hash VARCHAR NOT NULL, 
	PRIMARY KEY (number)
);
INSERT INTO "entries" VALUES(1,'booked',1748908800.0,1748649600.0,1748736000.0,1748649600.0,'','Node','n1','DE','{}',360000.0,36000.0,0.0,4.35600000000000058203e+05,0.0,4.35600000000000058203e+05,3.63000000000000042641e+01,0.0,0.0,4.35600000000000058203e+05,0.0,4.35600000000000058203e+05,'c104d5254f39f780e9c0ef8299f31018ab50ebf7a13623e4ada463a1cec79e79');
INSERT INTO "entries" VALUES(2,'booked',1748908800.0,1748649600.0,1748736000.0,1748649600.0,'shop','Deployment','web','DE','{}',360000.0,36000.0,0.0,475200.0,0.0,475200.0,39.6,0.0,0.0,475200.0,0.0,475200.0,'5b8da93079b21e12b5e0153f7feefd501e7b4755675a894a8578489d562bba9d');
CREATE TABLE factors (
	id INTEGER NOT NULL, 
	zone VARCHAR NOT NULL, 
	kind VARCHAR NOT NULL, 
	from_s DOUBLE NOT NULL, 
	until_s DOUBLE NOT NULL, 
	booked DOUBLE, 
	current DOUBLE, 
	changed_by VARCHAR NOT NULL, 
	PRIMARY KEY (id)
);
INSERT INTO "factors" VALUES(1,'DE','intensity',1748649600.0,1748653200.0,300.0,300.0,'');
INSERT INTO "factors" VALUES(2,'DE','marginal-intensity',1748649600.0,1748653200.0,NULL,NULL,'');
INSERT INTO "factors" VALUES(3,'DE','price',1748649600.0,1748653200.0,NULL,NULL,'');
INSERT INTO "factors" VALUES(4,'DE','pue',1748649600.0,1748653200.0,1.2,1.2,'');
INSERT INTO "factors" VALUES(5,'DE','gpu-pue',1748649600.0,1748653200.0,1.3,1.3,'');
INSERT INTO "factors" VALUES(6,'DE','pue',1748649600.0,1748653200.0,1.1,1.1,'');
INSERT INTO "factors" VALUES(7,'DE','gpu-pue',1748649600.0,1748653200.0,1.15,1.15,'');
INSERT INTO "factors" VALUES(8,'DE','intensity',1748908800.0,1748912400.0,300.0,300.0,'');
INSERT INTO "factors" VALUES(9,'DE','marginal-intensity',1748908800.0,1748912400.0,NULL,NULL,'');
INSERT INTO "factors" VALUES(10,'DE','price',1748908800.0,1748912400.0,NULL,NULL,'');
INSERT INTO "factors" VALUES(11,'DE','pue',1748908800.0,1748912400.0,1.2,1.2,'');
INSERT INTO "factors" VALUES(12,'DE','gpu-pue',1748908800.0,1748912400.0,1.3,1.3,'');
INSERT INTO "factors" VALUES(13,'DE','pue',1748908800.0,1748912400.0,1.1,1.1,'');
INSERT INTO "factors" VALUES(14,'DE','gpu-pue',1748908800.0,1748912400.0,1.15,1.15,'');
CREATE TABLE hours (
	pod_id INTEGER NOT NULL, 
	hour INTEGER NOT NULL, 
	from_s DOUBLE NOT NULL, 
	until_s DOUBLE NOT NULL, 
	cpu_j DOUBLE NOT NULL, 
	mem_j DOUBLE NOT NULL, 
	gpu_j DOUBLE NOT NULL, 
	energy_j DOUBLE NOT NULL, 
	measured_j DOUBLE NOT NULL, 
	assumed_j DOUBLE NOT NULL, 
	emissions_g DOUBLE NOT NULL, 
	energy_without_intensity_j DOUBLE NOT NULL, 
	cost DOUBLE NOT NULL, 
	energy_without_price_j DOUBLE NOT NULL, 
	marginal_g DOUBLE NOT NULL, 
	energy_without_marginal_j DOUBLE NOT NULL, 
	PRIMARY KEY (pod_id, hour)
)
 WITHOUT ROWID

;
INSERT INTO "hours" VALUES(1,485808,1748908800.0,1748912400.0,360000.0,36000.0,0.0,475200.0,0.0,475200.0,39.6,0.0,0.0,475200.0,0.0,475200.0);
INSERT INTO "hours" VALUES(2,485808,1748908800.0,1748912400.0,360000.0,36000.0,0.0,4.35600000000000058203e+05,0.0,4.35600000000000058203e+05,3.63000000000000042641e+01,0.0,0.0,4.35600000000000058203e+05,0.0,4.35600000000000058203e+05);
CREATE TABLE pods (
	id INTEGER NOT NULL, 
	uid VARCHAR NOT NULL, 
	namespace VARCHAR NOT NULL, 
	name VARCHAR NOT NULL, 
	owner_kind VARCHAR NOT NULL, 
	owner_name VARCHAR NOT NULL, 
	node VARCHAR NOT NULL, 
	zone VARCHAR NOT NULL, 
	started_s DOUBLE, 
	pue DOUBLE NOT NULL, 
	gpu_pue DOUBLE NOT NULL, 
	held VARCHAR, 
	from_s DOUBLE NOT NULL, 
	sampled_s DOUBLE NOT NULL, 
	cpu_w DOUBLE NOT NULL, 
	mem_w DOUBLE NOT NULL, 
	gpu_w DOUBLE NOT NULL, 
	quality VARCHAR NOT NULL, 
	source VARCHAR NOT NULL, 
	samples INTEGER NOT NULL, 
	completed_s DOUBLE, 
	cpu_j DOUBLE NOT NULL, 
	mem_j DOUBLE NOT NULL, 
	gpu_j DOUBLE NOT NULL, 
	energy_j DOUBLE NOT NULL, 
	measured_j DOUBLE NOT NULL, 
	assumed_j DOUBLE NOT NULL, 
	emissions_g DOUBLE NOT NULL, 
	energy_without_intensity_j DOUBLE NOT NULL, 
	cost DOUBLE NOT NULL, 
	energy_without_price_j DOUBLE NOT NULL, 
	marginal_g DOUBLE NOT NULL, 
	energy_without_marginal_j DOUBLE NOT NULL, 
	PRIMARY KEY (id), 
	UNIQUE (uid)
);
INSERT INTO "pods" VALUES(1,'web2-uid','shop','web-2','Deployment','web','n1','DE',NULL,1.2,1.3,NULL,1748908800.0,1748912400.0,100.0,10.0,0.0,'modelled','cadvisor',2,NULL,360000.0,36000.0,0.0,475200.0,0.0,475200.0,39.6,0.0,0.0,475200.0,0.0,475200.0);
INSERT INTO "pods" VALUES(2,'idle:n1-uid2','','unallocated','Node','n1','n1','DE',NULL,1.1,1.15,NULL,1748908800.0,1748912400.0,100.0,10.0,0.0,'modelled','cadvisor',2,NULL,360000.0,36000.0,0.0,4.35600000000000058203e+05,0.0,4.35600000000000058203e+05,3.63000000000000042641e+01,0.0,0.0,4.35600000000000058203e+05,0.0,4.35600000000000058203e+05);
CREATE TABLE postings (
	hour INTEGER NOT NULL, 
	namespace VARCHAR NOT NULL, 
	owner_kind VARCHAR NOT NULL, 
	owner_name VARCHAR NOT NULL, 
	zone VARCHAR NOT NULL, 
	quality VARCHAR NOT NULL, 
	intensity INTEGER NOT NULL, 
	marginal INTEGER NOT NULL, 
	price INTEGER NOT NULL, 
	pue INTEGER NOT NULL, 
	gpu_pue INTEGER NOT NULL, 
	cpu_j DOUBLE NOT NULL, 
	mem_j DOUBLE NOT NULL, 
	gpu_j DOUBLE NOT NULL, 
	PRIMARY KEY (hour, namespace, owner_kind, owner_name, zone, quality, intensity, marginal, price, pue, gpu_pue)
)
 WITHOUT ROWID

;
INSERT INTO "postings" VALUES(485736,'','Node','n1','DE','assumed',1,2,3,6,7,360000.0,36000.0,0.0);
INSERT INTO "postings" VALUES(485736,'shop','Deployment','web','DE','assumed',1,2,3,4,5,360000.0,36000.0,0.0);
INSERT INTO "postings" VALUES(485808,'','Node','n1','DE','assumed',8,9,10,13,14,360000.0,36000.0,0.0);
INSERT INTO "postings" VALUES(485808,'shop','Deployment','web','DE','assumed',8,9,10,11,12,360000.0,36000.0,0.0);
CREATE TABLE runs (
	uid VARCHAR NOT NULL, 
	namespace VARCHAR NOT NULL, 
	kind VARCHAR NOT NULL, 
	name VARCHAR NOT NULL, 
	started_s DOUBLE NOT NULL, 
	ended_s DOUBLE NOT NULL, 
	ran_s DOUBLE NOT NULL, 
	finished BOOLEAN NOT NULL, 
	PRIMARY KEY (uid)
);
CREATE TABLE samples (
	pod_id INTEGER NOT NULL, 
	time_s DOUBLE NOT NULL, 
	cpu_w DOUBLE NOT NULL, 
	mem_w DOUBLE NOT NULL, 
	gpu_w DOUBLE NOT NULL, 
	PRIMARY KEY (pod_id, time_s)
)
 WITHOUT ROWID

;
INSERT INTO "samples" VALUES(1,1748908800.0,100.0,10.0,0.0);
INSERT INTO "samples" VALUES(1,1748912400.0,100.0,10.0,0.0);
INSERT INTO "samples" VALUES(2,1748908800.0,100.0,10.0,0.0);
INSERT INTO "samples" VALUES(2,1748912400.0,100.0,10.0,0.0);
CREATE TABLE savings (
	uid VARCHAR NOT NULL, 
	namespace VARCHAR NOT NULL, 
	measure VARCHAR NOT NULL, 
	method VARCHAR NOT NULL, 
	completed_s DOUBLE NOT NULL, 
	name VARCHAR NOT NULL, 
	owner_kind VARCHAR NOT NULL, 
	owner_name VARCHAR NOT NULL, 
	amount DOUBLE NOT NULL, 
	energy_j DOUBLE NOT NULL, 
	pods INTEGER NOT NULL, 
	PRIMARY KEY (uid, namespace, measure, method, completed_s)
);
CREATE TABLE signals (
	zone VARCHAR NOT NULL, 
	measure VARCHAR NOT NULL, 
	time_s DOUBLE NOT NULL, 
	until_s DOUBLE NOT NULL, 
	value DOUBLE NOT NULL, 
	PRIMARY KEY (zone, measure, time_s)
)
 WITHOUT ROWID

;
INSERT INTO "signals" VALUES('DE','intensity',1748646000.0,1748912400.0,300.0);
CREATE TABLE state (
	"key" VARCHAR NOT NULL, 
	value VARCHAR NOT NULL, 
	PRIMARY KEY ("key")
);
INSERT INTO "state" VALUES('version','2');
INSERT INTO "state" VALUES('began_s','1748649600.0');
INSERT INTO "state" VALUES('folded_s','1748736000.0');
CREATE TABLE totals (
	namespace VARCHAR NOT NULL, 
	cpu_j DOUBLE NOT NULL, 
	mem_j DOUBLE NOT NULL, 
	gpu_j DOUBLE NOT NULL, 
	energy_j DOUBLE NOT NULL, 
	measured_j DOUBLE NOT NULL, 
	assumed_j DOUBLE NOT NULL, 
	emissions_g DOUBLE NOT NULL, 
	energy_without_intensity_j DOUBLE NOT NULL, 
	cost DOUBLE NOT NULL, 
	energy_without_price_j DOUBLE NOT NULL, 
	marginal_g DOUBLE NOT NULL, 
	energy_without_marginal_j DOUBLE NOT NULL, 
	PRIMARY KEY (namespace)
);
INSERT INTO "totals" VALUES('',720000.0,72000.0,0.0,8.71200000000000116407e+05,0.0,8.71200000000000116407e+05,7.26000000000000085282e+01,0.0,0.0,8.71200000000000116407e+05,0.0,8.71200000000000116407e+05);
INSERT INTO "totals" VALUES('shop',720000.0,72000.0,0.0,950400.0,0.0,950400.0,79.2,0.0,0.0,950400.0,0.0,950400.0);
CREATE INDEX ix_pods_completed_s ON pods (completed_s);
CREATE INDEX hours_by_hour ON hours (hour);
CREATE INDEX entries_by_time ON entries (from_s);
CREATE INDEX factors_by_time ON factors (zone, kind, from_s);
CREATE INDEX runs_by_workload ON runs (namespace, kind, name, ended_s);
COMMIT;
